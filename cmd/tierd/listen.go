package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/config"
)

// socketMode lets the group of the daemon use its sockets: NBD itself knows no
// users.
const socketMode = 0o660

// listeners are all addresses of the daemon.
type listeners struct {
	nbd     []net.Listener
	admin   net.Listener
	metrics net.Listener // nil: none
}

// open takes all addresses or none: from socket units, from an earlier run, or anew.
// Those that are its own it leaves with the service manager, if there is one.
func (l *listeners) open(cfg *config.Config, log *slog.Logger) (err error) {
	given, err := inheritListeners()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.close()
			for _, g := range given {
				_ = g.Close()
			}
		}
	}()
	own := func(kind, network, address string) (net.Listener, error) {
		n := fromStore(given, kind, network, address)
		if n == nil {
			if n, err = listen(network, address); err != nil {
				return nil, err
			}
		}
		if err := keep(n, storedName(kind, network, address)); err != nil && !errors.Is(err, errNoManager) {
			log.Warn("the service manager does not keep a socket for the next run", "address", address, "error", err)
		}
		return n, nil
	}

	for _, n := range fromUnits(given, kindNBD) {
		l.nbd = append(l.nbd, n)
		if err := checkRemote(n, &cfg.NBD); err != nil {
			return err
		}
	}
	if len(l.nbd) > 0 {
		log.Info("nbd.listen is not used: the sockets are those of the service manager")
	} else {
		for _, a := range cfg.NBD.Listen {
			n, err := own(kindNBD, a.Network, a.Address)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", a, err)
			}
			l.nbd = append(l.nbd, n)
		}
	}
	one := func(kind, network, address string) (net.Listener, error) {
		units := fromUnits(given, kind)
		switch {
		case len(units) > 1:
			return nil, fmt.Errorf("the service manager has %d sockets named %s, where one is needed", len(units), kind)
		case len(units) == 1:
			return units[0], nil
		}
		return own(kind, network, address)
	}
	if l.admin, err = one(kindAdmin, "unix", cfg.Admin.Socket); err != nil {
		return fmt.Errorf("listen on admin socket %s: %w", cfg.Admin.Socket, err)
	}
	if cfg.Metrics.Listen != "" || slices.ContainsFunc(given, func(g *inherited) bool { return g.kind == kindMetrics && g.stored == "" }) {
		if l.metrics, err = one(kindMetrics, "tcp", cfg.Metrics.Listen); err != nil {
			return fmt.Errorf("listen on %s for metrics: %w", cfg.Metrics.Listen, err)
		}
	}
	dropUnused(given, log)
	return nil
}

// attrs returns the addresses for the log, with the port that a port 0 became.
func (l *listeners) attrs() []any {
	var exports []string
	for _, n := range l.nbd {
		exports = append(exports, n.Addr().Network()+":"+n.Addr().String())
	}
	attrs := []any{"nbd", exports, "admin", l.admin.Addr().String()}
	if l.metrics != nil {
		attrs = append(attrs, "metrics", l.metrics.Addr().String())
	}
	return attrs
}

func (l *listeners) close() {
	for _, n := range append([]net.Listener{l.admin, l.metrics}, l.nbd...) {
		if n != nil {
			_ = n.Close()
		}
	}
}

// listen listens on an address. The socket file of a daemon that was killed is
// taken away; that of one that runs is not.
func listen(network, address string) (net.Listener, error) {
	if network != "unix" {
		return net.Listen(network, address)
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(address); err == nil && st.Mode()&os.ModeSocket != 0 {
		c, err := net.DialTimeout("unix", address, time.Second)
		switch {
		case err == nil:
			_ = c.Close()
			return nil, errors.New("address is in use by a running server")
		case errors.Is(err, unix.ECONNREFUSED):
			if err := os.Remove(address); err != nil {
				return nil, err
			}
		}
	}
	// The mode is right from the start: nobody slips in before a chmod.
	old := unix.Umask(0o777 &^ socketMode)
	defer unix.Umask(old)
	return net.Listen(network, address)
}
