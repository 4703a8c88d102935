# A daemon that may have lost answered data is not attached again by itself.
. /in/lib.sh
configure "{name: home, size: 400MiB}"
ctl pool create >/dev/null || exit 1
serve
ctl attach home /dev/nbd0 --timeout 3s || exit 1
make_fs ext4 /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt || exit 1
echo one >/mnt/f && sync
stop
# The metadata are lost: a rebuild makes another continuity id.
rm -f /var/pool.db /var/pool.db.*
ctl pool rebuild >/tmp/rebuild 2>&1 || {
    fault "rebuild fails"
    cat /tmp/rebuild
}
serve
(echo two >/mnt/g && sync) &
writer=$!
for _ in $(seq 300); do
    ctl attach --list | grep -q refused && break
    sleep .2
done
ctl attach --list
ctl attach --list | grep -q "refused.*may be lost" || fault "it was attached again"
kill -0 $writer 2>/dev/null || fault "the writer does not wait"
ctl attach home /dev/nbd0 --accept-loss || fault "the loss cannot be accepted"
wait $writer || fault "the writer fails"
[ "$(cat /mnt/f /mnt/g | tr '\n' ' ')" = "one two " ] || fault "the files hold something else"
umount /mnt
check_fs ext4 /dev/nbd0
ctl detach /dev/nbd0 || fault "detach fails"
finish
