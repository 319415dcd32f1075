#!/usr/bin/env bash
# Ends a cluster and deletes its data.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need kind
need_up

kind delete cluster --name "$cluster" --kubeconfig "$kubeconfig"
rm -f "$kubeconfig"
