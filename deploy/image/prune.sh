#!/bin/sh
# Takes out of a production node_modules what a running steptap never opens: prebuilt ZeroMQ addons of other
# platforms, C++ sources, types and maps. Fails when no addon for this platform is left.
#
#     prune.sh NODE_MODULES [ARCH]      ARCH as Node calls it: x64, arm64
set -eu
modules=$1
arch=${2:-$(node -p process.arch)}
builds=$modules/zeromq/build

for platform in "$builds"/*/; do
  [ "$platform" = "$builds/linux/" ] || rm -rf "$platform"
done
for cpu in "$builds"/linux/*/; do
  [ "$cpu" = "$builds/linux/$arch/" ] || rm -rf "$cpu"
done
# glibc-127 is the one that Node 22 and 24 load on Debian 12. The loader goes through the manifest and skips what is
# not there.
for abi in "$builds/linux/$arch/node"/*/; do
  case $abi in */glibc-127-Release/) ;; *) rm -rf "$abi" ;; esac
done
[ -f "$builds/linux/$arch/node/glibc-127-Release/addon.node" ] || {
  echo "prune: zeromq ships no glibc addon for linux/$arch" >&2
  exit 1
}

# node-addon-api is C++ headers; of cmake-ts only the loader is used at run time.
rm -rf "$modules/zeromq/src" "$modules/zeromq/script" "$modules/node-addon-api"
find "$modules" -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' -o -name '*.md' \) -delete
find "$modules" -type d \( -name test -o -name tests -o -name benchmarks -o -name docs \) -prune -exec rm -rf {} +
find "$modules" -type d -empty -delete
