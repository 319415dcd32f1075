#!/usr/bin/env bash
# Prints what a shell needs to use a cluster.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need kind
need_up

printf 'export KUBECONFIG=%q\n' "$kubeconfig"
