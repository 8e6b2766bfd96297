#!/usr/bin/env bash
# A Docker engine and base images for the tests, without any image registry.
#
# Where no engine answers and we are root on a Debian-like system, the distribution's engine is installed
# and started in the background. The base images are made from distribution packages, below evolve-test/:
#   evolve-test/debian:bookworm   glibc, bash, python3, git, gcc, make, ca-certificates, procps
#   evolve-test/busybox:1         busybox and musl: no bash, no glibc, no python
# A second call finds all of it and ends at once. Prints each thing that it did.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

DEBIAN_SUITE=bookworm
DEBIAN_PACKAGES=bash,python3,python3-venv,git,gcc,libc6-dev,make,ca-certificates,procps
DOCKERD_LOG=${DOCKERD_LOG:-/var/log/evolve-test-dockerd.log}
# Raise it when what is put into an image changes; an image with another label is made anew.
RECIPE="1 $DEBIAN_PACKAGES"

say() { echo "setup-docker: $*"; }
fail() { echo "setup-docker: $*" >&2; exit 1; }

engine_answers() { command -v docker >/dev/null && docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" -eq 0 ] || fail "needs root to install: ${missing[*]}"
  command -v apt-get >/dev/null || fail "knows only apt to install: ${missing[*]}"
  say "installing ${missing[*]}"
  apt-get -qq update
  apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

start_engine() {
  [ "$(id -u)" -eq 0 ] || fail "no Docker engine answers, and only root can install and start one"
  command -v dockerd >/dev/null || install_packages docker.io iptables
  # A killed engine leaves its pid file; the number may meanwhile be another process.
  if [ -f /var/run/docker.pid ] && ! grep -qs dockerd "/proc/$(cat /var/run/docker.pid)/comm"; then
    rm -f /var/run/docker.pid
  fi
  if [ ! -f /var/run/docker.pid ]; then
    say "starting dockerd, log in $DOCKERD_LOG"
    setsid -f dockerd >>"$DOCKERD_LOG" 2>&1 </dev/null
  fi
  for _ in $(seq 150); do
    engine_answers && return
    sleep 0.2
  done
  tail -n 20 "$DOCKERD_LOG" >&2
  fail "dockerd does not answer after 30 s"
}

has_image() { [ "$(docker image inspect --format '{{index .Config.Labels "evolve-test.recipe"}}' "$1" 2>/dev/null)" = "$RECIPE" ]; }

import_image() { # NAME COMMAND; the root file system as a tar on stdin
  docker import --change "LABEL evolve-test.recipe=\"$RECIPE\"" --change "CMD [\"$2\"]" - "$1" >/dev/null
  say "made $1"
}

make_debian_image() {
  install_packages mmdebstrap
  local sources=/etc/apt/sources.list.d/debian.sources
  [ -f "$sources" ] || sources=/etc/apt/sources.list
  mmdebstrap --quiet --variant=minbase --include="$DEBIAN_PACKAGES" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$DEBIAN_SUITE" - "$sources" | import_image evolve-test/debian:bookworm /bin/bash
}

download() { apt-get -qq -o APT::Sandbox::User=root download "$@"; }

make_busybox_image() {
  local work
  work=$(mktemp -d)
  chmod 755 "$work"
  (
    cd "$work"
    download busybox-static musl || { apt-get -qq update; download busybox-static musl; }
    mkdir -p root/etc root/tmp root/root root/var root/proc root/sys root/dev
    for package in ./*.deb; do dpkg-deb -x "$package" root; done
    chmod 1777 root/tmp
    root/bin/busybox --list | while read -r applet; do [ -e "root/bin/$applet" ] || ln -s busybox "root/bin/$applet"; done
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >root/etc/passwd
    printf 'root:x:0:\nnogroup:x:65534:\n' >root/etc/group
    tar --numeric-owner --owner=0 --group=0 -C root -c .
  ) | import_image evolve-test/busybox:1 /bin/sh
  rm -rf "$work"
}

if engine_answers; then
  say "an engine answers: $(docker version --format '{{.Server.Version}}')"
else
  start_engine
  say "engine $(docker version --format '{{.Server.Version}}') is up"
fi
has_image evolve-test/debian:bookworm || make_debian_image
has_image evolve-test/busybox:1 || make_busybox_image
say "ready: evolve-test/debian:bookworm evolve-test/busybox:1"
