# What the rows share: a pool on the two drives of the guest, a daemon, and checks.
set -u
bad=0

# fault tells what is wrong; the row goes on.
fault() {
    echo "FAULT: $*"
    bad=1
}

ctl() { /in/tierctl --config /tmp/t.yaml "$@"; }

# configure writes a configuration; $1 is the volumes.
configure() {
    cat >/tmp/t.yaml <<C
metadata: ${META:-/var/pool.db}
extent_size: 256KiB
tiers:
  - {name: fast, media: ssd, backings: [{path: /dev/vda}]}
  - {name: slow, media: hdd, backings: [{path: /dev/vdb}]}
volumes: [$1]
nbd: {listen: ["unix:/run/n", "tcp:127.0.0.1:10809"]${TLS:+, tls: {$TLS\}}}
metrics: {listen: "127.0.0.1:9809"}
admin: {socket: /run/a}
relocation: {cycle: 1s}
C
}

# serve starts the daemon and waits until it serves.
serve() {
    /in/tierd --config /tmp/t.yaml >>/tmp/log 2>&1 &
    daemon=$!
    for _ in $(seq 600); do
        [ -S /run/n ] && ctl pool status >/dev/null 2>&1 && return
        sleep .1
    done
    tail /tmp/log
    fault "the daemon does not serve"
    exit 1
}

# stop ends the daemon well.
stop() {
    kill $daemon
    wait $daemon || fault "the daemon ends with $?"
}

# reconnects is how often /dev/nbd0 was attached again.
reconnects() { ctl attach --list -o json | awk '/"reconnects"/ {print $2 + 0}'; }

# await_reconnects waits for so many, the last of them with success. A machine that stands
# still for longer than --timeout makes more.
await_reconnects() {
    local n
    for _ in $(seq 600); do
        n=$(reconnects)
        [ "$n" -ge "$1" ] && ctl attach --list | grep -q '^/dev/nbd0 *attached ' && break
        sleep .1
    done
    ctl attach --list
    [ "$n" -ge "$1" ] || fault "it was not attached again $1 times"
    ctl attach --list | grep -q '^/dev/nbd0 *attached ' || fault "it is not attached"
}

# allocated is how many bytes the slots of a volume take.
allocated() {
    ctl volume list -o json | awk -v v="\"$1\"," '/"name"/ {is = $2 == v} /"allocated_bytes"/ && is {print $2 + 0}'
}

# make_fs makes a file system on a device.
make_fs() { # ext4|xfs device
    case $1 in
    ext4) mkfs.ext4 -q -F "$2" ;;
    xfs) mkfs.xfs -q -f "$2" ;;
    esac || fault "mkfs.$1 fails"
}

# check_fs checks one that is not mounted.
check_fs() {
    case $1 in
    ext4) e2fsck -fn "$2" >/tmp/fsck 2>&1 ;;
    xfs) xfs_repair -n "$2" >/tmp/fsck 2>&1 ;;
    esac || {
        fault "the $1 is not clean"
        tail -5 /tmp/fsck
    }
}

# verified_load runs fio on /mnt; what it reads has to be what it wrote.
verified_load() {
    fio --name=v --directory=/mnt --size=16m --bs=4k --rw=randwrite --ioengine=libaio --iodepth=8 --direct=1 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=terse "$@" >/tmp/fio 2>&1
}

# gives_back checks that space that a file system frees returns to the pool.
gives_back() { # volume
    dd if=/dev/urandom of=/mnt/big bs=1M count=48 2>/dev/null && sync
    local before after
    before=$(allocated "$1")
    rm /mnt/big && sync
    fstrim /mnt || fault "fstrim fails"
    for _ in $(seq 600); do
        after=$(allocated "$1")
        [ "$after" -le $((before - (32 << 20))) ] && break
        sleep .1
    done
    echo "fstrim: $before bytes allocated before, $after after"
    [ "$after" -le $((before - (32 << 20))) ] || fault "fstrim gave back too little"
}

# no_errors looks for I/O errors in the kernel's log.
no_errors() {
    if dmesg | grep -iE 'I/O error|buffer io|EXT4-fs error|XFS.*(corrupt|error)|blk_update_request'; then
        fault "the kernel tells of errors"
    fi
}

# finish ends a row.
finish() {
    stop
    no_errors
    ctl pool check >/tmp/check 2>&1 || {
        fault "pool check finds damage"
        cat /tmp/check
    }
    exit $bad
}
