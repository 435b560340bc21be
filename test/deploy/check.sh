#!/bin/bash
# Checks everything in deploy/ that can be checked without a cluster. Run it after `npm run build`; it installs what it
# needs (Debian, PyPI, Go and npm packages) the first time, prints one line for each part and stops at the first that
# fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=$repo/.cache/deploy
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "deploy: $*" >&2; exit 1; }

mkdir -p "$cache"
# shellcheck source=test/deploy/tools.sh
. "$here/tools.sh"
cd "$repo"

# --- Kubernetes ---
for folder in deploy/kubernetes/monitoring deploy/kubernetes/examples/*/ test/deploy/kustomizations/stateful-set; do
  $KUSTOMIZE "$folder" >"$out/$(basename "$folder").yaml" || fail "$folder does not render"
done
if $KUSTOMIZE test/deploy/kustomizations/leader-with-init >/dev/null 2>&1; then
  fail "the component drops a leader's init containers instead of refusing them"
fi
cp -r deploy/helm "$out/charts"
$HELM dependency build "$out/charts/example" >/dev/null 2>"$out/helm.log" || fail "$(cat "$out/helm.log")"
for values in "$out"/charts/example/values*.yaml; do
  $HELM template demo "$out/charts/example" -f "$values" >"$out/helm-$(basename "$values")" || fail "$values does not render"
done
$HELM lint --quiet "$out/charts/example" >"$out/helm.log" || fail "$(cat "$out/helm.log")"
echo "kubernetes: $(python "$here/validate.py" "$out"/*.yaml)"
python "$here/same-sidecar.py" "$out/single-pod.yaml" "$out/rust-frontend.yaml" "$out/helm-values.yaml"
python "$here/same-sidecar.py" "$out/split-frontend.yaml" "$out/multi-node.yaml" "$out/helm-values-handshake.yaml"

# --- Prometheus and Grafana ---
python "$here/prometheus-rule.py" --check
python "$here/dashboard.py" deploy/grafana/dashboard.json >"$out/dashboard-rules.json"
promtool check config deploy/prometheus/prometheus.yaml >"$out/promtool.log" 2>&1 || fail "$(cat "$out/promtool.log")"
promtool check rules "$out/dashboard-rules.json" >"$out/promtool.log" 2>&1 || fail "$(cat "$out/promtool.log")"
promtool test rules deploy/prometheus/tests/*.test.yaml >"$out/promtool.log" 2>&1 || fail "$(cat "$out/promtool.log")"
echo "prometheus: $(grep -cE '^ +- (record|alert):' deploy/kubernetes/monitoring/prometheusrule.yaml) rules checked and tested, $(grep -c '"record"' "$out/dashboard-rules.json") queries of the dashboard checked"

# --- Image and package ---
shellcheck -x test/deploy/*.sh deploy/image/*.sh
hadolint deploy/Dockerfile
python "$here/compose.py" deploy/compose.yaml
"$here/image.sh"
"$here/package.sh"

# --- Everything together, as the containers of a pod ---
timeout 120 node dist/test/deploy/pod.js
