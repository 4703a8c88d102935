# The machine dies under a writer. $1: 1 before, 2 after.
. /in/lib.sh
# The metadata has to survive too: it is on a drive of its own.
mkdir -p /meta
[ $1 = 1 ] && mkfs.ext4 -q -F /dev/vdc
mount -t ext4 /dev/vdc /meta || exit 1
META=/meta/pool.db configure "{name: home, size: 400MiB}"
if [ $1 = 1 ]; then
    ctl pool create >/dev/null || exit 1
    serve
    ctl attach home /dev/nbd0 --timeout 3s || exit 1
    make_fs ext4 /dev/nbd0
    mount -t ext4 /dev/nbd0 /mnt || exit 1
    fio --name=noise --directory=/mnt --size=32m --bs=16k --rw=randwrite --time_based --runtime=600 --output-format=terse >/dev/null 2>&1 &
    i=0
    while true; do
        i=$((i + 1))
        echo "record $i" >/mnt/r$i && sync -f /mnt/r$i && echo "durable $i"
    done
fi
serve
ctl attach home /dev/nbd0 --timeout 3s || exit 1
mount -t ext4 /dev/nbd0 /mnt || fault "mount after the cut"
last=$(cat /in/last)
for i in $(seq $last); do
    [ "$(cat /mnt/r$i 2>&1)" = "record $i" ] || fault "record $i of $last, which fsync covered, is gone"
done
echo "$last records are there"
umount /mnt
check_fs ext4 /dev/nbd0
ctl detach /dev/nbd0 || fault "detach fails"
finish
