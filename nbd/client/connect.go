package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"tierd/nbd/wire"
)

// An Identity is what a client that connects again calls itself, to a server that
// fences its earlier connections then (wire.OptClient). Generations grow with each time
// that it connects anew; connections that are used side by side have the same one.
type Identity struct {
	ID         [wire.ClientIDSize]byte // random, and nobody else's business
	Generation uint64
}

// Info is what a server tells of an export that was opened.
type Info struct {
	Size        int64 // bytes
	Flags       uint16
	Description string
	// Fenced: earlier connections of the identity given cannot do anything any more.
	Fenced bool
}

// Connect opens the export at a, and leaves what comes after the handshake, which is
// the transmission with simple replies, to the caller. If a asks for TLS, conn is a
// *tls.Conn. id may be nil. ctx bounds connecting and the handshake; a refusal by the
// server is an *OptionError.
func Connect(ctx context.Context, a Address, id *Identity) (conn net.Conn, info Info, err error) {
	h, err := negotiate(ctx, a, func(h *haggler) error {
		var err error
		if id != nil {
			info.Fenced, err = h.identify(*id)
		}
		if err == nil {
			h.info, err = h.open(a.Export)
		}
		return err
	})
	if err != nil {
		return nil, Info{}, fmt.Errorf("open NBD export %q: %w", a.Export, err)
	}
	info.Size, info.Flags, info.Description = int64(h.info.size), h.info.flags, h.info.description
	return h.conn, info, nil
}

// negotiate connects to a server, within TLS if a says so, and has do take it from
// there. The connection is closed if that fails.
func negotiate(ctx context.Context, a Address, do func(*haggler) error) (*haggler, error) {
	socket, err := dialSocket(ctx, a)
	if err != nil {
		return nil, err
	}
	return negotiateOn(ctx, socket, a, do)
}

// negotiateOn is negotiate on a fresh connection.
func negotiateOn(ctx context.Context, socket net.Conn, a Address, do func(*haggler) error) (*haggler, error) {
	h := &haggler{conn: socket}
	done := withContext(ctx, socket)
	err := h.greet()
	if err == nil && a.TLS {
		err = h.startTLS(a)
	}
	if err == nil {
		err = do(h)
	}
	if cerr := done(); cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return h, nil
}

// dialSocket opens a socket to a.
func dialSocket(ctx context.Context, a Address) (net.Conn, error) {
	var d net.Dialer // TCP_NODELAY is on by default
	conn, err := d.DialContext(ctx, a.Network, a.Host)
	if err != nil {
		return nil, fmt.Errorf("connect to NBD server: %w", err)
	}
	return conn, nil
}

// startTLS has all that follows go within TLS.
func (h *haggler) startTLS(a Address) error {
	cfg, err := a.tlsConfig()
	if err != nil {
		return err
	}
	if err := h.send(wire.OptStartTLS, nil); err != nil {
		return err
	}
	if typ, _, err := h.reply(wire.OptStartTLS); err != nil {
		return fmt.Errorf("start TLS: %w", err)
	} else if typ != wire.RepAck {
		return fmt.Errorf("%w: %s in answer to STARTTLS", ErrProtocol, wire.ReplyName(typ))
	}
	session := tls.Client(h.conn, cfg)
	if err := session.Handshake(); err != nil { // within the deadline of the socket
		return fmt.Errorf("start TLS: %w", err)
	}
	h.conn = session
	return nil
}

// identify tells the server who we are, and returns whether it cares.
func (h *haggler) identify(id Identity) (bool, error) {
	if err := h.send(wire.OptClient, wire.AppendClient(nil, id.ID, id.Generation)); err != nil {
		return false, err
	}
	typ, _, err := h.reply(wire.OptClient)
	var refused *OptionError
	switch {
	case errors.As(err, &refused) && refused.Reply == wire.RepErrUnsup:
		return false, nil
	case err != nil:
		return false, err
	case typ != wire.RepAck:
		return false, fmt.Errorf("%w: %s in answer to the client's id", ErrProtocol, wire.ReplyName(typ))
	}
	return true, nil
}

// tlsConfig reads the certificates that a names. The CA's is needed; the client's are
// not, if the server asks for none.
func (a Address) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{ServerName: a.TLSName, MinVersion: tls.VersionTLS12}
	if a.Certificates == "" {
		return cfg, nil // the CAs of the system
	}
	file := filepath.Join(a.Certificates, "ca-cert.pem")
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificate of the CA: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificate of the CA: there is none in %s", file)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(a.Certificates, "client-cert.pem"), filepath.Join(a.Certificates, "client-key.pem"))
	if errors.Is(err, os.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return nil, fmt.Errorf("certificate of the client: %w", err)
	}
	cfg.Certificates = []tls.Certificate{cert}
	return cfg, nil
}
