package client

import (
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
}

const defaultPort = "10809"

// ParseURI parses "nbd+unix:///NAME?socket=PATH", "nbd://HOST[:PORT]/NAME" and
// the short form "unix:PATH" for the default export of a socket. The error says
// what is wrong with the address.
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
	switch u.Scheme {
	case "nbd+unix":
		a.Network, a.Host = "unix", u.Query().Get("socket")
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
	case "nbds", "nbds+unix":
		return Address{}, fmt.Errorf("parse NBD address %q: TLS is not supported", s)
	default:
		return Address{}, fmt.Errorf("parse NBD address %q: want nbd://HOST[:PORT]/NAME, nbd+unix:///NAME?socket=PATH or unix:PATH", s)
	}
	return a, nil
}
