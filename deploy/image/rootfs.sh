#!/bin/sh
# Lays out the root of the final image: Node, the shared libraries that it and the ZeroMQ addon load, the application.
# No shell, no package manager. A file is copied with the path it has here, so run it on the distribution to ship.
#
#     rootfs.sh APP NODE ROOT       APP has dist/, node_modules/ and package.json; NODE is the node binary
set -eu
app=$1
node=$2
root=$3

mkdir -p "$root/app" "$root/etc" "$root/tmp" "$root/run/steptap" "$root/usr/local/bin"
cp "$node" "$root/usr/local/bin/node"
cp -a "$app/." "$root/app/"

# Every line of ldd that names a file: "libm.so.6 => /lib/… (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)".
find "$app/node_modules/zeromq/build" -name addon.node | while read -r addon; do
  ldd "$addon"
done >"$root/.libraries"
ldd "$node" >>"$root/.libraries"
if grep -q 'not found' "$root/.libraries"; then
  grep 'not found' "$root/.libraries" >&2
  exit 1
fi
# The two below are opened by glibc itself, for host names.
for library in $(sed -n 's/.*[[:space:]]\(\/[^ ]*\) (0x.*/\1/p' "$root/.libraries" | sort -u) \
  $(find /lib /usr/lib -name 'libnss_dns.so.2' -o -name 'libnss_files.so.2' -o -name 'libresolv.so.2' | sort -u); do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
rm "$root/.libraries"

printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/tmp:/none\n' >"$root/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chmod 1777 "$root/tmp"
chmod 0777 "$root/run/steptap"
