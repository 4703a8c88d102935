# A server that is away for longer than requests wait: they fail, and when it is back the
# device serves again.
. /in/lib.sh
configure "{name: home, size: 400MiB}"
ctl pool create >/dev/null || exit 1
serve
ctl attach home /dev/nbd0 --connections 2 --timeout 2s --dead-timeout 4s || exit 1
dd if=/dev/urandom of=/tmp/block bs=4k count=1 2>/dev/null
dd if=/tmp/block of=/dev/nbd0 oflag=direct bs=4k count=1 2>/dev/null || fault "writing"
kill -9 $daemon
wait $daemon 2>/dev/null
begin=$(date +%s)
dd if=/dev/nbd0 of=/dev/null iflag=direct bs=4k count=1 2>/dev/null && fault "a read was answered by nobody"
took=$(($(date +%s) - begin))
echo "a read failed after $took s"
[ $took -ge 3 ] || fault "it did not wait"
ctl attach --list | grep -q reconnecting || fault "it is not told that the server is away"
sleep 5
serve
await_reconnects 1
dd if=/dev/nbd0 of=/tmp/back iflag=direct bs=4k count=1 2>/dev/null || fault "reading after the server is back"
cmp /tmp/block /tmp/back || fault "the block holds something else"

# And with nobody who watches: the next one takes over.
kill -9 "$(ctl attach --list -o json | awk '/"pid"/ {print $2 + 0}')"
kill -9 $daemon
wait $daemon 2>/dev/null
dd if=/dev/nbd0 of=/dev/null iflag=direct bs=4k count=1 2>/dev/null && fault "a read was answered by nobody, again"
serve
ctl attach home /dev/nbd0 --connections 2 --timeout 2s --dead-timeout 4s || fault "nobody takes over"
dd if=/dev/nbd0 of=/tmp/back iflag=direct bs=4k count=1 2>/dev/null || fault "reading after the takeover"
cmp /tmp/block /tmp/back || fault "the block holds something else, again"
ctl detach /dev/nbd0 || fault "detach fails"

echo "somebody has the device open while it is attached, and mounted while it is detached"
sleep 3 </dev/nbd0 &
ctl attach home /dev/nbd0 || fault "a device that was open is not attached"
make_fs ext4 /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt || fault "mount fails"
begin=$(date +%s)
ctl detach --force /dev/nbd0 || fault "detach --force fails"
took=$(($(date +%s) - begin))
[ $took -lt 30 ] || fault "detach --force took $took s"
[ "$(ctl attach --list -o json | grep -c device)" = 0 ] || fault "it is still listed"
dd if=/dev/nbd0 of=/dev/null iflag=direct bs=4k count=1 2>/dev/null && fault "the device goes on"
umount /mnt
for _ in $(seq 600); do
    [ -e /sys/block/nbd0/pid ] || break
    sleep .1
done
ctl attach home /dev/nbd0 || fault "it is not attached again"
ctl detach /dev/nbd0 || fault "detach fails"
no_errors() { :; } # there were some, as there had to be
finish
