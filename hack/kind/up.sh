#!/usr/bin/env bash
# Starts a cluster in containers, with one node, as `cargo xtask cluster up --node` does without an engine.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need kind kubectl

if is_up; then
  echo "Cluster \"$name\" is already up." >&2
else
  mkdir -p "$(dirname "$kubeconfig")"
  kind create cluster --name "$cluster" --kubeconfig "$kubeconfig" \
    --config "$(dirname "${BASH_SOURCE[0]}")/cluster.yaml" --wait 120s
fi
# Pods are refused before it is there.
kubectl --kubeconfig "$kubeconfig" wait --for=create --timeout=60s serviceaccount/default >/dev/null
echo "Use it:" >&2
echo "  eval \"\$(cargo xtask cluster env --provider kind --name $name)\"" >&2
