package attach

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tierd/nbd/client"
	"tierd/nbd/kernel"
	"tierd/pkg/clock"
)

const (
	// dialTime bounds connecting and the handshake of one connection. A server that
	// is starting may let it wait.
	dialTime = 30 * time.Second
	// lookEvery is how often the device and the sockets are looked at, besides what
	// the kernel tells.
	lookEvery = time.Second
	// firstRetry and lastRetry are how long to wait between two tries to connect.
	firstRetry, lastRetry = 100 * time.Millisecond, 2 * time.Second
	// deathTime is how long the kernel gets to notice that sockets have ended.
	deathTime = time.Second
	// proveTime is how long the device may take for a read before the new sockets
	// are taken for ignored.
	proveTime = 60 * time.Second
	// showTime is how long the device may take to show up, and for how long somebody may
	// have it open before, as udev does when there is a new one.
	showTime = 30 * time.Second
	// epoch is how many generations a Run has for itself.
	epoch = 1 << 20
)

// A Kernel is what of a kernel.Client is needed.
type Kernel interface {
	Connect(kernel.Device) error
	Reconfigure(index uint32, backend string, sockets []int) error
	Connected(index uint32) (bool, error)
}

// Options say what to attach, and how.
type Options struct {
	Device      string // /dev/nbdN
	URI         string // of the volume
	Connections int
	BlockSize   int           // bytes, 512 to 4096: the logical block of the device
	Timeout     time.Duration // of a request, after which it is sent again if its socket died
	DeadTimeout time.Duration // for how long requests wait for the server
	StateDir    string
	Deaths      <-chan uint32 // devices of which a socket died, as the kernel tells
	Logger      *slog.Logger

	// Prove returns when the device has answered a read, which may take for ever: it must
	// not do that in a thread of this process, which could not end then. The error is
	// ErrNoProof if the device could not be asked.
	Prove func(device string) error

	// Tests have others than the real ones.
	SysBlock string // /sys/block
	Clock    clock.Clock
}

// ErrNoProof is returned by Options.Prove if it could not look at the device.
var ErrNoProof = errors.New("the device could not be asked")

// errGone ends Run when the device was disconnected.
var errGone = errors.New("the device is disconnected")

// errServerGone is why a server that came cannot be used.
var errServerGone = errors.New("the server has gone again")

// A Mismatch is why a device is not connected to a server that is there.
type Mismatch struct {
	What string
	// Offered is the continuity id of the server if that is all: answered data may be
	// lost. That can be accepted.
	Offered string
}

func (e *Mismatch) Error() string { return e.What }

// IndexOf returns N of /dev/nbdN.
func IndexOf(device string) (uint32, error) {
	text, ok := strings.CutPrefix(filepath.Base(device), "nbd")
	n, err := strconv.ParseUint(text, 10, 31)
	if !ok || err != nil || filepath.Dir(filepath.Clean(device)) != "/dev" || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("must be /dev/nbdN (got %q)", device)
	}
	return uint32(n), nil
}

// An attachment is a device that Run looks after.
type attachment struct {
	o       Options
	k       Kernel
	index   uint32
	address client.Address
	files   files
	lock    *os.File
	log     *slog.Logger
	state   State
	links   []*link
	proving chan error // of a read that has not returned; nil: none
	noted   uint64     // the generation in the state file; 0: not by this Run

	unlocked string // why the lock is not held; "": it is
}

// Run attaches a device, or takes over one that is attached, calls ready, and keeps it
// attached until ctx ends or the device is disconnected, and then returns nil.
func Run(ctx context.Context, k Kernel, o Options, ready func()) error {
	if o.SysBlock == "" {
		o.SysBlock = "/sys/block"
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	a := &attachment{o: o, k: k, files: filesOf(o.StateDir, o.Device), log: o.Logger.With("device", o.Device)}
	var err error
	if a.index, err = IndexOf(o.Device); err != nil {
		return err
	}
	if a.address, err = client.ParseURI(o.URI); err != nil {
		return err
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return err
	}
	if a.lock, err = a.files.lockDevice(o.Device); err != nil {
		return err
	}
	defer func() { a.lock.Close() }()
	defer a.leave()

	err = a.begin(ctx)
	if err == nil {
		ready()
		err = a.watch(ctx)
	}
	switch {
	case errors.Is(err, ErrWatched): // what is noted is another's by now
		return err
	case errors.Is(err, errGone):
		a.log.Info("the device is disconnected")
		return Forget(o.StateDir, o.Device)
	case err != nil && ctx.Err() != nil && a.state.Generation > 0:
		err = nil
	}
	if a.state.Generation > 0 {
		if a.state.Phase != PhaseRefused { // that stays to be decided
			a.state.Phase, a.state.Since = PhaseUnwatched, o.Clock.Now()
		}
		err = errors.Join(err, a.save())
	}
	return err
}

// save notes the state for the next Run.
func (a *attachment) save() error {
	err := a.files.save(a.state)
	if err == nil {
		a.noted = a.state.Generation
	}
	return err
}

// leave lets go of the sockets, which the kernel goes on using.
func (a *attachment) leave() {
	for _, l := range a.links {
		l.close()
	}
}

// begin attaches the device, or takes it over.
func (a *attachment) begin(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(a.o.SysBlock, filepath.Base(a.o.Device))); err != nil {
		return fmt.Errorf("%s: there is no such device; modprobe nbd makes some, nbds_max=N so many: %w", a.o.Device, fs.ErrNotExist)
	}
	on, err := a.connected(ctx)
	if err != nil {
		return err
	}
	old, err := Load(a.o.StateDir, a.o.Device)
	switch {
	case on && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is in use by something else; tierctl detach --force disconnects it", a.o.Device)
	case on && err != nil:
		return fmt.Errorf("%s is attached, but not to know to what: %w; tierctl detach --force disconnects it", a.o.Device, err)
	case on && old.URI != a.o.URI:
		return fmt.Errorf("%s is attached to %s; detach it first", a.o.Device, old.URI)
	case on && !a.isOf(old):
		return fmt.Errorf("%s was attached to %s, and to something else since; tierctl detach --force disconnects it", a.o.Device, old.URI)
	case on:
		a.state = old
		a.state.PID = os.Getpid()
		// Beyond all that an earlier Run may have used without being able to note it.
		a.state.Generation |= epoch - 1
		a.log.Info("taking over an attached device", "uri", a.o.URI)
		if old.Connections != a.o.Connections {
			a.log.Warn("the number of connections stays until the device is detached", "connections", old.Connections, "asked", a.o.Connections)
		}
		return a.again(ctx)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	a.state = State{Device: a.o.Device, URI: a.o.URI, Connections: a.o.Connections, ClientID: hex.EncodeToString(id[:]), PID: os.Getpid()}
	if err := Forget(a.o.StateDir, a.o.Device); err != nil {
		return err
	}
	err = a.connect(ctx)
	if err != nil {
		a.state.Generation = 0 // there is nothing to take over
	}
	return err
}

// connect sets the device up.
func (a *attachment) connect(ctx context.Context) error {
	links, info, err := a.dialAll(ctx)
	if err != nil {
		return err
	}
	a.links = links
	a.state.Size = info.Size
	a.state.Volume, a.state.Continuity = describe(info.Description)
	if err := a.save(); err != nil {
		return err
	}
	err = a.k.Connect(kernel.Device{
		Index: a.index, Size: uint64(info.Size), BlockSize: uint64(a.o.BlockSize), ServerFlags: info.Flags,
		Timeout: a.o.Timeout, DeadTimeout: a.o.DeadTimeout, Backend: a.state.backend(a.o.URI), Sockets: descriptors(links),
	})
	if err != nil {
		return errors.Join(err, Forget(a.o.StateDir, a.o.Device))
	}
	if err := a.awaitDevice(ctx); err != nil {
		return err
	}
	a.state.Named = a.sys("backend") != ""
	a.log.Info("attached", "uri", a.o.URI, "bytes", a.state.Size, "volume", a.state.Volume, "connections", a.state.Connections)
	a.attached()
	return nil
}

// attached notes that the device has its sockets.
func (a *attachment) attached() {
	a.state.Phase, a.state.Problem, a.state.Since = PhaseAttached, "", a.o.Clock.Now()
	a.state.Offered = ""
	_ = os.Remove(a.files.accept) // what was accepted was for this time
	if err := a.save(); err != nil {
		a.log.Warn("state is not noted", "error", err)
	}
}

func descriptors(links []*link) []int {
	fds := make([]int, len(links))
	for i, l := range links {
		fds[i] = l.fd
	}
	return fds
}

// dialAll opens all connections, of a generation of their own.
func (a *attachment) dialAll(ctx context.Context) (links []*link, info client.Info, err error) {
	a.state.Generation++
	if a.state.Phase != "" { // a device is there, whose next Run must know
		// At least that there was this Run: with no room for more the device is connected
		// all the same.
		if err := a.save(); err != nil && a.noted/epoch != a.state.Generation/epoch {
			return nil, info, err
		}
	}
	id, err := a.state.identity()
	if err != nil {
		return nil, info, err
	}
	for range a.state.Connections {
		dctx, cancel := context.WithTimeout(ctx, dialTime)
		var l *link
		l, info, err = dial(dctx, a.address, id)
		cancel()
		if err == nil {
			links = append(links, l)
			err = a.check(info)
		}
		if err != nil {
			for _, l := range links {
				l.end()
			}
			return nil, info, err
		}
	}
	return links, info, nil
}

// check compares what a server tells with what is attached.
func (a *attachment) check(info client.Info) error {
	if a.state.Phase == "" { // nothing is yet
		if info.Size <= 0 {
			return fmt.Errorf("the volume has %d bytes", info.Size)
		}
		return nil
	}
	volume, continuity := describe(info.Description)
	switch {
	case volume != a.state.Volume:
		return &Mismatch{What: fmt.Sprintf("the server has volume %q there now, and not %q", volume, a.state.Volume)}
	case info.Size < a.state.Size:
		return &Mismatch{What: fmt.Sprintf("the volume has %d bytes now, and the device %d", info.Size, a.state.Size)}
	case continuity == a.state.Continuity:
		return nil
	}
	if accepted, err := os.ReadFile(a.files.accept); err == nil && string(accepted) == continuity {
		a.log.Warn("the loss of answered data is accepted", "continuity", continuity)
		a.state.Continuity = continuity
		return nil
	}
	return &Mismatch{Offered: continuity, What: fmt.Sprintf("data that was answered may be lost: the continuity id is %s now, and was %s", continuity, a.state.Continuity)}
}

// watch returns when the device is gone or ctx ends.
func (a *attachment) watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.o.Deaths: // of whichever device: many of others put off no look
		case <-a.o.Clock.After(lookEvery):
		}
		if err := a.hold(); err != nil {
			return err
		}
		if a.gone() {
			return errGone
		}
		if !a.anyDead() {
			continue
		}
		if err := a.again(ctx); err != nil {
			return err
		}
	}
}

// hold makes sure that no other process comes to watch the device, although somebody has
// removed the file that says so. The error is ErrWatched if one does already.
func (a *attachment) hold() error {
	err := a.relock()
	if err == nil || errors.Is(err, ErrWatched) {
		a.unlocked = ""
		return err
	}
	if a.unlocked != err.Error() {
		a.unlocked = err.Error()
		a.log.Warn("another process might come to watch the device too", "error", err)
	}
	return nil
}

// relock makes and locks the file anew if it is not there any more.
func (a *attachment) relock() error {
	ours, err := a.lock.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(a.files.lock); err == nil && os.SameFile(ours, there) {
		return nil
	}
	if err := os.MkdirAll(a.o.StateDir, 0o700); err != nil {
		return err
	}
	lock, err := a.files.lockDevice(a.o.Device)
	if err != nil {
		return err
	}
	a.lock.Close()
	a.lock = lock
	return nil
}

func (a *attachment) anyDead() bool {
	for _, l := range a.links {
		if l.dead() {
			return true
		}
	}
	return len(a.links) == 0
}

// again connects the device anew, however long it takes. If one socket has died all
// are replaced: then no earlier connection is left that could still do something.
func (a *attachment) again(ctx context.Context) error {
	began, wait := a.o.Clock.Now(), firstRetry
	a.state.Phase, a.state.Since = PhaseReconnecting, began
	for {
		if err := a.hold(); err != nil {
			return err
		}
		err := a.tryAgain(ctx)
		if errors.Is(err, errGone) {
			return err
		}
		if err == nil {
			a.state.Reconnects++
			a.log.Info("attached again", "after", a.o.Clock.Now().Sub(began).Round(time.Millisecond))
			a.attached()
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if a.gone() || held(a.files.down) {
			return errGone
		}
		a.note(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.o.Clock.After(wait/2 + mathrand.N(wait/2+1)):
		}
		wait = min(2*wait, lastRetry)
	}
}

// note keeps why the device is not attached, and logs it when that is news.
func (a *attachment) note(err error) {
	phase := PhaseReconnecting
	no := new(Mismatch)
	if errors.As(err, &no) {
		phase = PhaseRefused
	}
	if phase == a.state.Phase && err.Error() == a.state.Problem {
		return
	}
	a.state.Phase, a.state.Problem, a.state.Offered = phase, err.Error(), no.Offered
	if phase == PhaseRefused {
		hint := "tierctl detach gives the device up: its requests fail, and the file system needs a check"
		if no.Offered != "" {
			hint += "; tierctl attach --accept-loss goes on with what there is"
		}
		a.log.Error("not attached again; requests wait for somebody to decide", "reason", err, "hint", hint)
	} else {
		a.log.Warn("the server cannot be used; trying again", "error", err)
	}
	if err := a.save(); err != nil {
		a.log.Warn("state is not noted", "error", err)
	}
}

// tryAgain connects the device anew, if the server is the one it was.
func (a *attachment) tryAgain(ctx context.Context) error {
	links, _, err := a.dialAll(ctx)
	if err != nil {
		return err
	}
	// Sockets that are not dead keep their places, and the kernel would ignore the
	// new ones. Those of an earlier Run are ended by the server, which has fenced them.
	for len(a.o.Deaths) > 0 {
		<-a.o.Deaths
	}
	alive := a.state.Connections
	for _, l := range a.links {
		if l.dead() {
			alive--
		}
		l.end()
	}
	a.links = links
	a.awaitDeaths(ctx, alive)
	// While a device that is disconnected is open it counts as connected.
	if a.gone() || held(a.files.down) {
		return errGone
	}
	if err := a.k.Reconfigure(a.index, a.state.backend(a.o.URI), descriptors(links)); err != nil {
		return err
	}
	return a.prove(ctx)
}

// awaitDeaths waits until the kernel has told of so many dead sockets, or for a while:
// it may have told before.
func (a *attachment) awaitDeaths(ctx context.Context, n int) {
	timeout := a.o.Clock.After(deathTime)
	for n > 0 {
		select {
		case index := <-a.o.Deaths:
			if index == a.index {
				n--
			}
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}
