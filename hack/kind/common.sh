# What the scripts here share; they are run by `cargo xtask cluster … --provider kind`.
# shellcheck shell=bash
set -euo pipefail

name=${1:?usage: $(basename "$0") NAME [ARCHIVE]}
cluster=leasehold-$name
# One file a cluster: the user's own kubeconfig stays as it is.
# shellcheck disable=SC2034 # the scripts use it
kubeconfig=${LEASEHOLD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leasehold}/kind/$name.kubeconfig

need() {
  for program in "$@"; do
    command -v "$program" >/dev/null || {
      echo "error: $program is needed and not installed" >&2
      exit 1
    }
  done
}

is_up() {
  kind get clusters --quiet | grep --quiet --line-regexp --fixed-strings "$cluster"
}

need_up() {
  is_up || {
    echo "error: cluster \"$name\" is not up; start it with \`cargo xtask cluster up --provider kind --name $name\`" >&2
    exit 1
  }
}
