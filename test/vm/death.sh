# One connection of four dies, again and again, under a load. Each goes through a process
# of its own, which can be killed.
. /in/lib.sh
configure "{name: home, size: 400MiB}"
ctl pool create >/dev/null || exit 1
serve
nc -ll -p 10810 -e nc 127.0.0.1 10809 &
relay=$!
relays() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(tr '\0' ' ' 2>/dev/null <"$p/cmdline")" = "nc 127.0.0.1 10809 " ] && echo "${p#/proc/}"
    done
}
ctl attach home /dev/nbd0 --connections 4 --timeout 5s --uri nbd://127.0.0.1:10810/ || exit 1
[ "$(relays | wc -l)" = 4 ] || fault "there are $(relays | wc -l) relays"
make_fs xfs /dev/nbd0
mount -t xfs /dev/nbd0 /mnt || exit 1
verified_load --rate_iops=300 &
load=$!
for i in 1 2 3; do
    sleep 2
    kill -9 "$(relays | sed -n "${i}p")"
    await_reconnects $i
done
wait $load || {
    fault "fio"
    tail -3 /tmp/fio
}
umount /mnt || fault "umount fails"
check_fs xfs /dev/nbd0
ctl detach /dev/nbd0 || fault "detach fails"
kill $relay
finish
