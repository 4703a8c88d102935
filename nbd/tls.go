package nbd

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"tierd/nbd/wire"
)

// A TLSMode says what TLS is to clients.
type TLSMode int

// The modes.
const (
	TLSOff     TLSMode = iota // not offered
	TLSAllow                  // for clients that ask for it
	TLSRequire                // nothing is told or served without
)

// mustTLS tells whether the client has to ask for TLS before all else.
func (c *conn) mustTLS() bool {
	cfg := &c.srv.cfg
	return cfg.TLS == TLSRequire && c.tls == nil && !(cfg.PlaintextOnUnix && c.local())
}

// local tells whether the client is on a Unix socket.
func (c *conn) local() bool {
	_, unix := c.nc.(*net.UnixConn)
	return unix
}

// startTLS answers STARTTLS and, if it may, goes on within TLS. Nothing that the
// client said before is remembered: somebody in between may have said it. Of what
// came behind the option nothing has been read, and it is taken for TLS.
func (hs *handshake) startTLS(data []byte) error {
	c := hs.c
	refusal := ""
	switch {
	case len(data) > 0:
		refusal = "STARTTLS takes no data"
	case c.tls != nil:
		refusal = "TLS is on already"
	}
	if refusal != "" {
		hs.respond(wire.OptStartTLS, wire.RepErrInvalid, []byte(refusal))
		return hs.send()
	}
	hs.respond(wire.OptStartTLS, wire.RepAck, nil)
	if err := hs.send(); err != nil {
		return err
	}
	socket := &tlsSocket{Conn: c.nc, rc: c.rc}
	session := tls.Server(socket, c.srv.cfg.TLSConfig())
	if err := session.HandshakeContext(context.Background()); err != nil { // within the deadline of the socket
		return fmt.Errorf("%w: %w", errTLS, err)
	}
	if certs := session.ConnectionState().PeerCertificates; len(certs) > 0 {
		c.subject = certs[0].Subject.CommonName
	}
	c.tls, c.below = session, socket
	hs.negotiated = negotiated{}
	return nil
}

// stream is what the protocol is spoken on.
func (c *conn) stream() net.Conn {
	if c.tls != nil {
		return c.tls
	}
	return c.nc
}

// readTLS is read within TLS. It waits for the socket without a buffer: only when
// there is something to decrypt is one taken.
func (c *conn) readTLS(into []byte, want int) (int, error) {
	for {
		p := into
		if p == nil {
			p = c.inputRoom(want)
		}
		n, err := c.tls.Read(p)
		if n > 0 || err != errWouldBlock {
			return n, err
		}
		c.parkBuffers()
		if err := c.awaitInput(); err != nil {
			return 0, err
		}
	}
}

// awaitInput returns when the socket has something to read, its end too.
func (c *conn) awaitInput() error {
	var b [1]byte
	return c.rc.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
}

// errWouldBlock is what a tlsSocket answers when there is nothing to read. It counts
// as a timeout, after which a TLS session goes on where it was.
var errWouldBlock error = wouldBlock{os.ErrDeadlineExceeded}

type wouldBlock struct{ error }

func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// A tlsSocket is the socket below a TLS session. Since the end of the handshake it does
// not wait for something to read: readTLS does.
type tlsSocket struct {
	net.Conn
	rc      syscall.RawConn
	serving bool
}

func (s *tlsSocket) Read(p []byte) (n int, err error) {
	if !s.serving || s.rc == nil {
		return s.Conn.Read(p)
	}
	cerr := s.rc.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), p)
		return err != syscall.EINTR
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err == syscall.EAGAIN:
		return 0, errWouldBlock
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
