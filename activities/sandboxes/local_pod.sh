# The first process of a local box's pod: sh local_pod.sh PYTHON RELAY SOCKET LAYERS DISK FROZEN...
#
# It owns the network namespace that the box joins, sizes the box's disk and keeps the relay running.
# Stdin holds firewall rules, or nothing. Prints "up" when the box may be started, and the relay prints
# "ready". DISK is an ext4 image to mount on LAYERS, or empty. What is FROZEN becomes read-only here:
# the programs of the host through which commands enter a box, so that nothing in a box can overwrite
# them by /proc/self/exe. Ending this process ends all that is in its pid namespace.

python=$1 relay=$2 socket=$3 layers=$4 disk=$5
shift 5
start_relay() {
    setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$python" -I -S "$relay" "$socket" </dev/null &
}
start_relay # first: it takes longest, and needs nothing of what follows until it is spoken to

[ -z "$disk" ] || mount -t ext4 -o loop,nosuid,nodev,noatime "$disk" "$layers" || exit
for frozen in "$@"; do
    mount -o bind,ro "$frozen" "$frozen" || exit
done
mkdir -p "$layers/root" "$layers/usr" "$layers/dpkg" \
    "$layers/root.work" "$layers/usr.work" "$layers/dpkg.work" || exit
if command -v ip >/dev/null; then
    ip link set lo up || exit
else
    "$python" -I -S -c '
import fcntl, socket, struct
with socket.socket() as any_socket:
    request = struct.pack("16sH14x", b"lo", 0x49)  # IFF_UP | IFF_LOOPBACK | IFF_RUNNING
    fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS
' || exit
fi
rules=$(cat)
if [ -n "$rules" ]; then
    printf '%s\n' "${rules%%# ipv6*}" | iptables-restore || exit
    [ ! -e /proc/net/if_inet6 ] || printf '%s\n' "${rules#*# ipv6}" | ip6tables-restore || exit
fi
exec </dev/null
echo up
while :; do
    wait $!
    sleep 0.2
    start_relay
done
