# tierctl attach over TCP, within TLS with certificates on both sides.
. /in/lib.sh
d=/in/tls
TLS="mode: require, cert: $d/server-cert.pem, key: $d/server-key.pem, client_ca: $d/ca-cert.pem" \
    configure "{name: home, size: 400MiB, allow_clients: [client]}"
ctl pool create >/dev/null || exit 1
serve
ctl attach home /dev/nbd0 --uri nbd://127.0.0.1:10809/ && fault "it was attached without TLS"
ctl attach home /dev/nbd0 --connections 2 --timeout 5s --uri "nbds://127.0.0.1:10809/?tls-certificates=$d" || exit 1
make_fs ext4 /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt || exit 1
verified_load --rate_iops=400 &
load=$!
sleep 2
echo "killed"
kill -9 $daemon
wait $daemon 2>/dev/null
sleep 1
serve
wait $load || {
    fault "fio"
    tail -3 /tmp/fio
}
await_reconnects 1

echo "the process that watches is killed, and takes its sessions with it; requests wait for another"
kill -9 "$(ctl attach --list -o json | awk '/"pid"/ {print $2 + 0}')"
(echo data >/mnt/f && sync) &
writer=$!
sleep 1
kill -0 $writer 2>/dev/null || fault "a writer did not wait"
ctl attach home /dev/nbd0 --connections 2 --timeout 5s --uri "nbds://127.0.0.1:10809/?tls-certificates=$d" || fault "nobody takes over"
wait $writer || fault "the writer fails"
[ "$(cat /mnt/f)" = data ] || fault "the file holds something else"
umount /mnt || fault "umount fails"
check_fs ext4 /dev/nbd0
ctl detach /dev/nbd0 || fault "detach fails"
finish
