package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"tierd/pkg/config"
)

// The kinds of sockets, which are also the names (FileDescriptorName=) by which a socket
// unit gives them.
const (
	kindNBD     = "nbd"
	kindAdmin   = "admin"
	kindMetrics = "metrics"
)

// storedPrefix begins the names of sockets that an earlier run of this daemon has left
// with the service manager.
const storedPrefix = "tierd-"

// An inherited socket came from the service manager: from a socket unit, or from an
// earlier run.
type inherited struct {
	net.Listener
	kind   string
	stored string // the name under which it is kept; "": a socket unit's
	used   bool
}

// inheritListeners returns the sockets that the service manager has passed on. All have
// to be of use: one that is not is a mistake of a unit, which must not go unnoticed.
func inheritListeners() (list []*inherited, err error) {
	for _, f := range activation.Files(true) {
		l, ferr := inherit(f)
		_ = f.Close() // the listener has a descriptor of its own
		if ferr != nil {
			err = errors.Join(err, fmt.Errorf("socket %q from the service manager: %w", f.Name(), ferr))
			continue
		}
		list = append(list, l)
	}
	if err != nil {
		for _, l := range list {
			_ = l.Close()
		}
		return nil, err
	}
	return list, nil
}

func inherit(f *os.File) (*inherited, error) {
	in := &inherited{kind: f.Name()}
	if rest, ok := strings.CutPrefix(f.Name(), storedPrefix); ok {
		in.kind, _, _ = strings.Cut(rest, "-")
		in.stored = f.Name()
	}
	if !slices.Contains([]string{kindNBD, kindAdmin, kindMetrics}, in.kind) {
		return nil, fmt.Errorf("its name must be %s, %s or %s (FileDescriptorName=)", kindNBD, kindAdmin, kindMetrics)
	}
	fd := int(f.Fd())
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, errors.New("is no socket")
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if typ != unix.SOCK_STREAM || err != nil || listens == 0 {
		return nil, errors.New("must be a stream socket that listens (ListenStream=, Accept=no)")
	}
	if in.Listener, err = net.FileListener(f); err != nil {
		return nil, err
	}
	network := in.Addr().Network()
	if network != "unix" && (network != "tcp" || in.kind == kindAdmin) {
		return nil, errors.Join(fmt.Errorf("is a socket of %s, which cannot serve %s", network, in.kind), in.Close())
	}
	return in, nil
}

// fromUnits takes the sockets of a kind that socket units have given. They stand in the
// place of those of the configuration.
func fromUnits(list []*inherited, kind string) (found []net.Listener) {
	for _, l := range list {
		if l.kind == kind && l.stored == "" {
			l.used = true
			found = append(found, l.Listener)
		}
	}
	return found
}

// fromStore takes the socket with an address that an earlier run has left; nil if there
// is none, or if its file is gone, so that nobody finds it.
func fromStore(list []*inherited, kind, network, address string) net.Listener {
	if st, err := os.Lstat(address); network == "unix" && (err != nil || st.Mode()&os.ModeSocket == 0) {
		return nil
	}
	for _, l := range list {
		if !l.used && l.kind == kind && l.stored == storedName(kind, network, address) {
			l.used = true
			return l.Listener
		}
	}
	return nil
}

// storedName is the name under which a socket is kept: by its address, so that it is
// found again if the configuration still has that.
func storedName(kind, network, address string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(network + ":" + address))
	return fmt.Sprintf("%s%s-%016x", storedPrefix, kind, h.Sum64())
}

// dropUnused closes the sockets that nobody took, and has the service manager forget
// those it keeps.
func dropUnused(list []*inherited, log *slog.Logger) {
	for _, l := range list {
		if l.used {
			continue
		}
		log.Info("closing a socket of an earlier run that is of no use any more", "address", l.Addr().String())
		_ = l.Close()
		if l.stored != "" {
			_ = notifyWith("FDSTOREREMOVE=1\nFDNAME="+l.stored, nil)
		}
	}
}

// keep asks the service manager to keep a socket for the next run of the daemon: clients
// that connect in between wait, and are not refused. The file of a Unix socket has to
// stay then.
func keep(l net.Listener, name string) error {
	sc, ok := l.(syscall.Conn)
	if !ok {
		return errors.New("it has no file descriptor")
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	// Not File and Fd: they would have the socket block, for us too.
	cerr := rc.Control(func(fd uintptr) { err = notifyWith("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd))) })
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return nil
}

// errNoManager is returned where no service manager listens.
var errNoManager = errors.New("there is no service manager")

// notifyWith sends a message to the service manager, with file descriptors in rights.
func notifyWith(state string, rights []byte) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return errNoManager
	}
	if socket[0] == '@' {
		socket = "\x00" + socket[1:]
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendmsg(fd, []byte(state), rights, &unix.SockaddrUnix{Name: socket}, unix.MSG_NOSIGNAL)
}

// checkRemote refuses an NBD socket of a socket unit that other machines reach without
// TLS, as the check of the configuration does for its own addresses.
func checkRemote(l net.Listener, n *config.NBD) error {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() || n.TLS.Mode == config.TLSRequire || n.InsecureRemotePlaintext {
		return nil
	}
	return fmt.Errorf("socket %s from the service manager: must be a loopback address, unless nbd.tls.mode is require, or nbd.insecure_remote_plaintext is true", a)
}
