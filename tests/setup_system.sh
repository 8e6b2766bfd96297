#!/usr/bin/env bash
# Distribution packages that the tests of real boxes use, installed when root and absent.
set -euo pipefail
declare -A of=([nsenter]=util-linux [setpriv]=util-linux [iptables-restore]=iptables [slirp4netns]=slirp4netns
    [mkfs.ext4]=e2fsprogs [gcc]=gcc [git]=git [ip]=iproute2 [ps]=procps [busybox]=busybox-static)
missing=()
for program in "${!of[@]}"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${of[$program]}")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "all there"
    exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
