#!/usr/bin/env bash
# Gives the node of a cluster an image.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need kind
need_up

kind load image-archive --name "$cluster" "${2:?usage: $(basename "$0") NAME ARCHIVE}"
