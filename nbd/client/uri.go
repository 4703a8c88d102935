package client

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// An Address is where an export is.
type Address struct {
	Network string // "unix" or "tcp"
	Host    string // path of the socket, or host:port
	Export  string // "" is the default export

	TLS bool
	// Certificates is a folder with ca-cert.pem, and client-cert.pem and client-key.pem
	// if the server wants to know who we are; "": the CAs of the system.
	Certificates string
	TLSName      string // what the server's certificate must name
}

const defaultPort = "10809"

// ParseURI parses "nbd+unix:///NAME?socket=PATH", "nbd://HOST[:PORT]/NAME" and
// the short form "unix:PATH" for the default export of a socket. With nbds:// and
// nbds+unix:// the connection goes within TLS; the parameters tls-certificates, a folder,
// and tls-hostname say how. The error says what is wrong with the address.
func ParseURI(s string) (Address, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path == "" {
			return Address{}, fmt.Errorf("parse NBD address %q: the path of the socket is missing", s)
		}
		return Address{Network: "unix", Host: path}, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return Address{}, fmt.Errorf("parse NBD address: %w", err)
	}
	a := Address{Export: strings.TrimPrefix(u.Path, "/")}
	scheme, q := u.Scheme, u.Query()
	if plain, ok := strings.CutPrefix(scheme, "nbds"); ok {
		scheme = "nbd" + plain
		a.TLS, a.Certificates, a.TLSName = true, q.Get("tls-certificates"), cmp.Or(q.Get("tls-hostname"), u.Hostname(), "localhost")
	}
	switch scheme {
	case "nbd+unix":
		a.Network, a.Host = "unix", q.Get("socket")
		if a.Host == "" {
			return Address{}, fmt.Errorf("parse NBD address %q: ?socket=PATH is missing", s)
		}
	case "nbd":
		if u.Hostname() == "" {
			return Address{}, fmt.Errorf("parse NBD address %q: the host is missing", s)
		}
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		a.Network, a.Host = "tcp", net.JoinHostPort(u.Hostname(), port)
	default:
		return Address{}, fmt.Errorf("parse NBD address %q: want nbd[s]://HOST[:PORT]/NAME, nbd[s]+unix:///NAME?socket=PATH or unix:PATH", s)
	}
	return a, nil
}
