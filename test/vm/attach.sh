# tierctl attach, while the daemon is killed and restarted. $1: connections.
. /in/lib.sh
n=$1
fs=ext4
[ $n = 1 ] || fs=xfs
configure "{name: home, size: 400MiB}"
ctl pool create >/dev/null || exit 1
serve
ctl attach home /dev/nbd0 --connections $n --timeout 3s || exit 1
[ "$(cat /sys/block/nbd0/backend 2>/dev/null)" = "tierd:$(ctl volume list -o json | awk -F'"' '/"uuid"/ {print $4}')" ] || fault "the kernel does not know the volume"
make_fs $fs /dev/nbd0
mount -t $fs /dev/nbd0 /mnt || exit 1
verified_load --loops=2 --rate_iops=700 &
load=$!
sleep 2
echo "killed"
kill -9 $daemon
wait $daemon 2>/dev/null
sleep 1
serve
sleep 4
echo "restarted"
stop
sleep 1
serve
wait $load || {
    fault "fio"
    tail -3 /tmp/fio
}
await_reconnects 2

echo "the process that watches is killed, and another takes over"
kill -9 "$(ctl attach --list -o json | awk '/"pid"/ {print $2 + 0}')"
sleep .5
ctl attach --list | grep -q unwatched || fault "it is not told that nobody watches"
echo data >/mnt/f && sync || fault "the device does not work unwatched"
ctl attach home /dev/nbd0 --connections $n --timeout 3s || fault "nobody takes over"
kill -9 $daemon
wait $daemon 2>/dev/null
serve
echo more >/mnt/g && sync || fault "writing after the takeover"
[ "$(cat /mnt/f /mnt/g | tr '\n' ' ')" = "data more " ] || fault "the files hold something else"

gives_back home
ctl detach /dev/nbd0 2>/dev/null && fault "a mounted device was detached"
umount /mnt || fault "umount fails"
check_fs $fs /dev/nbd0
ctl detach /dev/nbd0 || fault "detach fails"
[ -e /sys/block/nbd0/pid ] && fault "/dev/nbd0 stays"
[ "$(ctl attach --list -o json | grep -c device)" = 0 ] || fault "it is still listed"
finish
