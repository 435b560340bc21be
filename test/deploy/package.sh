#!/bin/bash
# The package as someone would install it: packed, installed in an empty folder without dev dependencies, its command
# run from there; and its software bill of materials.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package: $*" >&2; exit 1; }

cd "$repo"
npm pack --silent --ignore-scripts --pack-destination "$work" >/dev/null
tar -tzf "$work"/steptap-*.tgz >"$work/files"
if grep -E '^package/(test|proxy|deploy|node_modules)/|\.test\.js$' "$work/files"; then fail "that does not belong into the package"; fi

mkdir "$work/empty"
cd "$work/empty"
npm init --yes >/dev/null
npm install --silent --omit=dev "$work"/steptap-*.tgz
version=$(npx --no-install steptap --version)
[[ $version == *"$(node -p "require('$repo/package.json').version")"* ]] || fail "steptap --version says $version"
npx --no-install steptap --help >/dev/null || fail "--help failed"
code=0
npx --no-install steptap run --no-such-flag >/dev/null 2>&1 || code=$?
[ "$code" = 64 ] || fail "an unknown flag ended with $code instead of 64"

cd "$repo"
npm sbom --omit=dev --sbom-format=cyclonedx --package-lock-only >"$work/sbom.json"
parts=$(node -p "
  const sbom = JSON.parse(require('node:fs').readFileSync('$work/sbom.json', 'utf8'));
  if (!sbom.components.some((part) => part.name === 'zeromq')) throw new Error('no zeromq in the SBOM');
  sbom.components.length")
echo "package: $version installed from $(wc -l <"$work/files") files; $parts parts in its SBOM"
