# shellcheck shell=bash disable=SC2154,SC2034 # $cache and $here come from check.sh, what is set here goes there
# Sourced by check.sh: finds or installs what it needs, and leaves it for the next run in .cache/deploy.
# Sets: KUSTOMIZE (a command that renders the folder that follows), HELM, and puts Python's tools in PATH.

install_debian() { # PACKAGE...
  dpkg-query -W "$@" >/dev/null 2>&1 || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  } >"$cache/apt.log" 2>&1 || { tail -5 "$cache/apt.log" >&2; return 1; }
}

install_go() { # NAME MODULE@VERSION; its own build cache may be cold, so below everything else in priority
  [ -x "$cache/bin/$1" ] || GOBIN=$cache/bin nice -n 19 go install "$2" >"$cache/$1.log" 2>&1 ||
    { tail -5 "$cache/$1.log" >&2; return 1; }
}

mkdir -p "$cache/bin"

install_debian prometheus shellcheck

if ! cmp -s "$here/requirements.txt" "$cache/venv/requirements.txt"; then
  python3 -m venv "$cache/venv"
  "$cache/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$cache/venv/requirements.txt"
fi
PATH=$cache/venv/bin:$cache/bin:$PATH

if kubectl kustomize --help >/dev/null 2>&1; then
  KUSTOMIZE='kubectl kustomize'
else
  install_go kustomize sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
  KUSTOMIZE='kustomize build'
fi
if helm version >/dev/null 2>&1; then
  HELM=helm
else
  install_go helm helm.sh/helm/v3/cmd/helm@v3.20.2
  HELM=$cache/bin/helm
fi
