package attach

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"tierd/nbd/client"
)

// A link is a connection to the server and the socket of it that the kernel gets. We
// keep a descriptor of the socket, to see it die and to end it.
type link struct {
	fd    int
	proxy *proxy // within TLS
}

// dial opens a connection, up to the end of the handshake.
func dial(ctx context.Context, a client.Address, id client.Identity) (*link, client.Info, error) {
	conn, info, err := client.Connect(ctx, a, &id)
	if err != nil {
		return nil, info, err
	}
	if session, ok := conn.(*tls.Conn); ok {
		l, err := newProxy(session)
		return l, info, err
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, info, err
	}
	l := &link{fd: -1}
	cerr := raw.Control(func(fd uintptr) {
		if l.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(l.fd, false)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		l.close()
		return nil, info, fmt.Errorf("keep the socket: %w", err)
	}
	return l, info, nil
}

// dead reports whether the other end is gone.
func (l *link) dead() bool {
	fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// end ends the connection, whoever else holds the socket, and lets go of it.
func (l *link) end() {
	if l.fd >= 0 {
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	l.close()
}

// close lets go of the socket. What the kernel holds goes on, but for a proxy, which is
// needed for that.
func (l *link) close() {
	if l.proxy != nil {
		l.proxy.end()
	}
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

// A proxy carries the bytes between a socket of the kernel and a TLS session.
type proxy struct {
	session *tls.Conn
	socket  net.Conn
	done    chan struct{} // closed when both directions have ended
}

// proxyBuffer is how much is carried at once, in each direction.
const proxyBuffer = 256 << 10

func newProxy(session *tls.Conn) (*link, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("socketpair", err), session.Close())
	}
	file := os.NewFile(uintptr(pair[1]), "kernel's socket")
	socket, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, errors.Join(err, unix.Close(pair[0]), session.Close())
	}
	p := &proxy{session: session, socket: socket, done: make(chan struct{})}
	half := make(chan struct{}, 2)
	// The buffers are there before they are needed, and the types are hidden from
	// io.CopyBuffer, which would make buffers of its own for them.
	carry := func(to io.Writer, from io.Reader, buf []byte) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf)
		// Whichever ends first ends the other: a connection is of no use by halves.
		_ = p.socket.Close()
		_ = p.session.NetConn().Close()
		half <- struct{}{}
	}
	buffers := [2][]byte{make([]byte, proxyBuffer), make([]byte, proxyBuffer)}
	go carry(session, socket, buffers[0])
	go carry(socket, session, buffers[1])
	go func() {
		<-half
		<-half
		close(p.done)
	}()
	return &link{fd: pair[0], proxy: p}, nil
}

// end ends both sides, and returns when nothing is carried any more.
func (p *proxy) end() {
	_ = p.socket.Close()
	_ = p.session.NetConn().Close()
	<-p.done
}
