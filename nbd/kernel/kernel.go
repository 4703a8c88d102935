package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoNBD is returned when the kernel has no NBD client, or its module is not loaded.
var ErrNoNBD = errors.New("the kernel has no NBD client; modprobe nbd loads it where it is a module")

const (
	familyName = "nbd"
	groupName  = "nbd_mc_group"
	// answerTime is how long the kernel may take for an answer.
	answerTime = 30 * time.Second
)

// Device is what Connect makes of /dev/nbdN.
type Device struct {
	Index       uint32
	Size        uint64        // bytes
	BlockSize   uint64        // bytes: logical and physical block
	ServerFlags uint16        // the transmission flags of the export
	Timeout     time.Duration // whole seconds; 0: the kernel's 30 s
	DeadTimeout time.Duration // whole seconds; 0: requests fail at once when all sockets are dead
	Backend     string        // identifies what is served; "": nothing does
	Sockets     []int         // TCP and Unix stream sockets, after the handshake
}

// A Client speaks to the kernel's NBD client. Its methods are safe for concurrent use.
type Client struct {
	family uint16
	group  uint32

	mu  sync.Mutex
	fd  int
	seq uint32
}

// Open finds the kernel's NBD client. The error is ErrNoNBD if there is none.
func Open() (*Client, error) {
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	c := &Client{fd: fd}
	attrs, err := c.call(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, appendString(nil, unix.CTRL_ATTR_FAMILY_NAME, familyName))
	if errors.Is(err, unix.ENOENT) {
		err = ErrNoNBD
	}
	if err == nil {
		c.family, c.group, err = parseFamily(attrs, groupName)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask for the netlink family of NBD: %w", err), c.Close())
	}
	return c, nil
}

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return -1, os.NewSyscallError("netlink socket", err)
	}
	tv := unix.NsecToTimeval(int64(answerTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return -1, errors.Join(os.NewSyscallError("netlink socket", err), unix.Close(fd))
	}
	return fd, nil
}

// Close ends the conversation. Devices stay as they are.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unix.Close(c.fd)
}

// call sends a command and returns the attributes of the answer. An error of the
// kernel is a unix.Errno.
func (c *Client) call(family uint16, cmd uint8, attrs []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	if err := unix.Sendto(c.fd, request(family, cmd, c.seq, attrs), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("send to netlink", err)
	}
	var answer []byte
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("receive from netlink", err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			var m message
			if m, rest, err = nextMessage(rest); err != nil {
				return nil, err
			}
			switch {
			case m.seq != c.seq:
			case m.typ == unix.NLMSG_ERROR && len(m.body) >= 4:
				if no := int32(ne.Uint32(m.body)); no != 0 {
					return nil, unix.Errno(-no)
				}
				return answer, nil
			default:
				if _, attrs, err := m.genl(); err == nil {
					answer = append([]byte(nil), attrs...)
				}
			}
		}
	}
}

// Connect gives a device its sockets and sets it up. The caller may close the sockets
// afterwards: the kernel holds them.
func (c *Client) Connect(d Device) error {
	if err := checkSockets(d.Sockets); err != nil {
		return err
	}
	b := appendUint32(nil, attrIndex, d.Index)
	b = appendUint64(b, attrSize, d.Size)
	b = appendUint64(b, attrBlockSize, d.BlockSize)
	b = appendUint64(b, attrServerFlags, uint64(d.ServerFlags))
	if d.Timeout > 0 {
		b = appendUint64(b, attrTimeout, uint64(d.Timeout/time.Second))
	}
	if d.DeadTimeout > 0 {
		b = appendUint64(b, attrDeadTimeout, uint64(d.DeadTimeout/time.Second))
	}
	if d.Backend != "" {
		b = appendString(b, attrBackend, d.Backend)
	}
	if _, err := c.call(c.family, cmdConnect, appendSockets(b, d.Sockets)); err != nil {
		return fmt.Errorf("connect /dev/nbd%d: %w", d.Index, err)
	}
	return nil
}

// Reconfigure gives a device new sockets in the places of dead ones. The kernel ignores
// those for which there is no place.
func (c *Client) Reconfigure(index uint32, backend string, sockets []int) error {
	if err := checkSockets(sockets); err != nil {
		return err
	}
	b := appendUint32(nil, attrIndex, index)
	if backend != "" {
		b = appendString(b, attrBackend, backend)
	}
	if _, err := c.call(c.family, cmdReconfigure, appendSockets(b, sockets)); err != nil {
		return fmt.Errorf("reconnect /dev/nbd%d: %w", index, err)
	}
	return nil
}

// Disconnect takes a device down: its requests fail.
func (c *Client) Disconnect(index uint32) error {
	if _, err := c.call(c.family, cmdDisconnect, appendUint32(nil, attrIndex, index)); err != nil {
		return fmt.Errorf("disconnect /dev/nbd%d: %w", index, err)
	}
	return nil
}

// Connected reports whether a device is set up; its sockets may be dead.
func (c *Client) Connected(index uint32) (bool, error) {
	attrs, err := c.call(c.family, cmdStatus, appendUint32(nil, attrIndex, index))
	if err != nil {
		return false, fmt.Errorf("status of /dev/nbd%d: %w", index, err)
	}
	all, err := parseStatus(attrs)
	return all[index], err
}

// checkSockets refuses what the kernel's NBD client cannot use: it has crashed for
// sockets of other kinds (CVE-2025-40080).
func checkSockets(sockets []int) error {
	if len(sockets) == 0 {
		return errors.New("no sockets")
	}
	for _, fd := range sockets {
		typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("file descriptor %d: %w", fd, err)
		}
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return fmt.Errorf("file descriptor %d: %w", fd, err)
		}
		if typ != unix.SOCK_STREAM || domain != unix.AF_UNIX && domain != unix.AF_INET && domain != unix.AF_INET6 {
			return fmt.Errorf("file descriptor %d: only TCP and Unix stream sockets can carry NBD", fd)
		}
	}
	return nil
}

// Events tells when sockets of devices die.
type Events struct {
	family uint16
	file   *os.File
}

// Events subscribes to what the kernel tells. Some of it may get lost.
func (c *Client) Events() (*Events, error) {
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(c.group)), unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to events of NBD: %w", err), unix.Close(fd))
	}
	return &Events{family: c.family, file: os.NewFile(uintptr(fd), "netlink")}, nil
}

// Next waits for a socket of a device to die, and returns which device that was. After
// Close the error is os.ErrClosed.
func (e *Events) Next() (index uint32, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := e.file.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			continue // some got lost
		}
		if err != nil {
			return 0, err
		}
		if index, ok := parseLinkDead(buf[:n], e.family); ok {
			return index, nil
		}
	}
}

// Close ends the subscription.
func (e *Events) Close() error { return e.file.Close() }
