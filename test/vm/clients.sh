# nbd-client, as it comes with the distribution.
. /in/lib.sh
configure "{name: home, size: 400MiB}, {name: large, size: 10GiB}"
ctl pool create >/dev/null || exit 1
serve

detach() {
    nbd-client -d /dev/nbd0 >/dev/null || fault "nbd-client does not detach"
    for _ in $(seq 600); do
        [ -e /sys/block/nbd0/pid ] || return 0
        sleep .1
    done
    fault "/dev/nbd0 stays"
}

while read -r where fs connections block; do
    echo "== $where, $fs, $connections connections, blocks of $block"
    case $where in
    unix) at="-unix /run/n" ;;
    tcp) at="127.0.0.1 10809" ;;
    esac
    nbd-client $at -N home -b $block -C $connections -timeout 600 /dev/nbd0 >/tmp/out 2>&1 || {
        fault "nbd-client does not attach"
        cat /tmp/out
        continue
    }
    [ "$(blockdev --getsize64 /dev/nbd0)" = $((400 << 20)) ] || fault "the device has $(blockdev --getsize64 /dev/nbd0) bytes"
    [ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fault "no FUA"
    grep -q "write back" /sys/block/nbd0/queue/write_cache || fault "no FLUSH"
    blkdiscard /dev/nbd0 || fault "blkdiscard fails"
    [ "$(allocated home)" = 0 ] || fault "$(allocated home) bytes are allocated after blkdiscard"
    make_fs $fs /dev/nbd0
    mount -t $fs /dev/nbd0 /mnt || fault "mount fails"
    verified_load || {
        fault "fio"
        tail -3 /tmp/fio
    }
    gives_back home
    umount /mnt || fault "umount fails"
    check_fs $fs /dev/nbd0
    detach
done <<'R'
tcp ext4 1 512
unix xfs 1 512
unix ext4 4 512
tcp xfs 4 4096
R

echo "== 10 GiB"
nbd-client -unix /run/n -N large -b 512 /dev/nbd0 >/dev/null || fault "nbd-client does not attach"
echo 4096 >/sys/block/nbd0/queue/max_sectors_kb
dd if=/dev/urandom of=/tmp/r bs=4M count=4 2>/dev/null
dd if=/tmp/r of=/dev/nbd0 bs=4M seek=1000 oflag=direct conv=fsync 2>/dev/null || fault "writing 4 MiB at once"
dd if=/dev/nbd0 bs=4M skip=1000 count=4 iflag=direct 2>/dev/null | cmp - /tmp/r || fault "reading 4 MiB at once"
blkdiscard /dev/nbd0 || fault "blkdiscard of 10 GiB"
[ "$(allocated large)" = 0 ] || fault "$(allocated large) bytes are allocated after blkdiscard"
dd if=/dev/nbd0 bs=4M skip=1000 count=4 iflag=direct 2>/dev/null | cmp -n $((16 << 20)) - /dev/zero || fault "discarded data is not zero"
detach
finish
