package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMessagesToTheKernel(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes below are those of a little-endian machine")
	}
	b := appendUint32(nil, attrIndex, 3)
	b = appendUint64(b, attrSize, 1<<30)
	b = appendString(b, attrBackend, "ab")
	got := request(27, cmdConnect, 9, appendSockets(b, []int{5, 6}))
	want := []byte{
		92, 0, 0, 0, 27, 0, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0, // netlink: length, family, REQUEST|ACK, sequence, port
		1, 1, 0, 0, // CONNECT, version 1
		8, 0, 1, 0, 3, 0, 0, 0,
		12, 0, 2, 0, 0, 0, 0, 64, 0, 0, 0, 0,
		7, 0, 10, 0, 'a', 'b', 0, 0,
		28, 0, 7, 0x80,
		12, 0, 1, 0x80, 8, 0, 1, 0, 5, 0, 0, 0,
		12, 0, 1, 0x80, 8, 0, 1, 0, 6, 0, 0, 0,
	}
	want[0] = byte(len(want))
	if !bytes.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func device(index uint32, connected byte) []byte {
	return appendAttr(nil, attrDevice|unix.NLA_F_NESTED, appendAttr(appendUint32(nil, attrDevIndex, index), attrConnected, []byte{connected}))
}

func TestMessagesFromTheKernel(t *testing.T) {
	group := func(id uint32, name string) []byte {
		return appendAttr(nil, 1|unix.NLA_F_NESTED, appendString(appendUint32(nil, unix.CTRL_ATTR_MCAST_GRP_ID, id), unix.CTRL_ATTR_MCAST_GRP_NAME, name))
	}
	b := appendString(nil, unix.CTRL_ATTR_FAMILY_NAME, "nbd")
	b = appendAttr(b, unix.CTRL_ATTR_FAMILY_ID, []byte{27, 0})
	b = appendAttr(b, unix.CTRL_ATTR_MCAST_GROUPS|unix.NLA_F_NESTED, append(group(4, "other"), group(5, groupName)...))
	if family, id, err := parseFamily(b, groupName); err != nil || family != ne.Uint16([]byte{27, 0}) || id != 5 {
		t.Errorf("family: got %d, %d, %v", family, id, err)
	}
	if _, _, err := parseFamily(nil, groupName); err == nil {
		t.Error("an answer without a family is taken")
	}
	b = appendAttr(nil, attrDevices|unix.NLA_F_NESTED, append(device(0, 1), device(7, 0)...))
	if got, err := parseStatus(b); err != nil || !maps.Equal(got, map[uint32]bool{0: true, 7: false}) {
		t.Errorf("status: got %v, %v", got, err)
	}
	m := request(27, cmdLinkDead, 0, appendUint32(nil, attrIndex, 7))
	if index, ok := parseLinkDead(m, 27); !ok || index != 7 {
		t.Errorf("link dead: got %d, %v", index, ok)
	}
	for what, m := range map[string][]byte{
		"another family":  request(28, cmdLinkDead, 0, appendUint32(nil, attrIndex, 7)),
		"another command": request(27, cmdStatus, 0, appendUint32(nil, attrIndex, 7)),
		"no device":       request(27, cmdLinkDead, 0, nil),
		"cut short":       m[:len(m)-1],
		"nothing":         nil,
	} {
		if index, ok := parseLinkDead(m, 27); ok {
			t.Errorf("%s: taken for the death of a socket of %d", what, index)
		}
	}
}

// FuzzMessages: whatever comes is parsed or refused, without a panic or an endless loop.
func FuzzMessages(f *testing.F) {
	f.Add(request(27, cmdLinkDead, 0, appendUint32(nil, attrIndex, 7)))
	f.Add(request(27, cmdStatus, 1, appendAttr(nil, attrDevices|unix.NLA_F_NESTED, device(0, 1))))
	f.Add(appendAttr(nil, unix.CTRL_ATTR_MCAST_GROUPS, []byte{4, 0, 1, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseLinkDead(b, 27)
		_, _, _ = parseFamily(b, groupName)
		_, _ = parseStatus(b)
		for rest := b; len(rest) > 0; {
			before := len(rest)
			var err error
			if _, rest, err = nextMessage(rest); err != nil {
				return
			}
			if len(rest) >= before {
				t.Fatal("no progress")
			}
		}
	})
}

// TestCVE_2025_40080: nothing but stream sockets of TCP and Unix gets to the kernel.
func TestCVE_2025_40080(t *testing.T) {
	pair := func(domain, typ int) int {
		fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Skipf("no socket of domain %d: %v", domain, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	good := pair(unix.AF_UNIX, unix.SOCK_STREAM)
	for what, fds := range map[string][]int{
		"datagram":  {good, pair(unix.AF_UNIX, unix.SOCK_DGRAM)},
		"seqpacket": {pair(unix.AF_UNIX, unix.SOCK_SEQPACKET)},
		"UDP":       {pair(unix.AF_INET, unix.SOCK_DGRAM)},
		"netlink":   {pair(unix.AF_NETLINK, unix.SOCK_RAW)},
		"no socket": {0x7fffffff},
		"none":      {},
	} {
		if err := checkSockets(fds); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	if err := checkSockets([]int{good, pair(unix.AF_INET, unix.SOCK_STREAM)}); err != nil {
		t.Errorf("stream sockets: %v", err)
	}
}

// TestOpen: a kernel without NBD is told in words; one with it has no device in use
// that does not exist.
func TestOpen(t *testing.T) {
	c, err := Open()
	if err != nil {
		if !errors.Is(err, ErrNoNBD) || !strings.Contains(err.Error(), "modprobe nbd") {
			t.Errorf("Open: %v", err)
		}
		return
	}
	defer c.Close()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if on, err := c.Connected(1 << 19); on {
		t.Errorf("a device that cannot be is connected: %v", err)
	}
}
