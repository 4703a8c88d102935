package attach

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tierd/nbd/client"
)

// A Phase is how a device is.
type Phase string

// The phases.
const (
	PhaseAttached     Phase = "attached"
	PhaseReconnecting Phase = "reconnecting" // requests wait for the server
	PhaseRefused      Phase = "refused"      // requests wait for somebody to decide; see Problem
	PhaseUnwatched    Phase = "unwatched"    // nobody connects it again
)

// State is what is noted of a device, for the next Run and for people. The file is for
// its owner alone, since ClientID is a secret.
type State struct {
	Device      string    `json:"device"`
	URI         string    `json:"uri"`
	Volume      string    `json:"volume"`      // the volume's UUID; "": the server told none
	Continuity  string    `json:"continuity"`  // "": likewise
	Size        int64     `json:"size_bytes"`  // of the device
	Connections int       `json:"connections"` // sockets
	ClientID    string    `json:"client_id"`
	Generation  uint64    `json:"generation"`
	Phase       Phase     `json:"phase"`
	Problem     string    `json:"problem"` // why it is not attached
	Offered     string    `json:"offered"` // the continuity id that is refused; "": something else is, or nothing
	Since       time.Time `json:"since"`   // of the phase
	Reconnects  int       `json:"reconnects"`
	PID         int       `json:"pid"`   // of who watches, or did
	Named       bool      `json:"named"` // the kernel tells what the device serves
}

// identity is the state's part that the server is told.
func (s *State) identity() (id client.Identity, err error) {
	b, err := hex.DecodeString(s.ClientID)
	if err != nil || len(b) != len(id.ID) {
		return id, fmt.Errorf("client id %q of %s is none", s.ClientID, s.Device)
	}
	copy(id.ID[:], b)
	id.Generation = s.Generation
	return id, nil
}

// backend names what the device serves, at uri, for the kernel.
func (s *State) backend(uri string) string {
	if s.Volume != "" {
		return "tierd:" + s.Volume
	}
	return uri
}

// describe reads what a server tells of an export: the volume's UUID and its continuity
// id; empty if it is no tierd.
func describe(description string) (volume, continuity string) {
	f := strings.Fields(description)
	if len(f) == 5 && f[0] == "tierd" && f[1] == "volume" && f[3] == "continuity" {
		return f[2], f[4]
	}
	return "", ""
}

// files are those of a device, in Options.StateDir.
type files struct{ state, accept, down, lock string }

func filesOf(dir, device string) files {
	base := filepath.Join(dir, filepath.Base(device))
	return files{base + ".json", base + ".accept", base + ".down", base + ".lock"}
}

// Load returns what is noted of a device; the error is fs.ErrNotExist if nothing is.
func Load(dir, device string) (State, error) {
	b, err := os.ReadFile(filesOf(dir, device).state)
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("state of %s: %w", device, err)
	}
	if _, err := s.identity(); err != nil || s.Device != device || s.URI == "" || s.Connections < 1 || s.Size < 1 {
		return State{}, fmt.Errorf("state of %s: %s makes no sense", device, filesOf(dir, device).state)
	}
	return s, nil
}

// save replaces the file. It lies in a file system of memory in most cases, and need
// not outlive the kernel.
func (f files) save(s State) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.state), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(f.state+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(f.state+".new", f.state)
}

// ErrNoLoss is returned when a device is not refused for a loss of answered data.
var ErrNoLoss = errors.New("is not refused because data may be lost: there is no loss to accept")

// AcceptLoss lets the device be attached again although answered data may be lost: to the
// server as it is now, not as it may be after one more loss. It is for whoever watches the
// device now, or will. The error is ErrNoLoss if there is nothing to accept.
func AcceptLoss(dir, device string) error {
	s, err := Load(dir, device)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.Offered == "" {
		return fmt.Errorf("%s %w", device, ErrNoLoss)
	}
	return os.WriteFile(filesOf(dir, device).accept, []byte(s.Offered), 0o600)
}

// TakeDown runs what disconnects the device, while nobody connects it again.
func TakeDown(dir, device string, disconnect func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := lockFile(filesOf(dir, device).down)
	if errors.Is(err, errHeld) {
		return fmt.Errorf("%s is being detached already", device)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return disconnect()
}

// Forget removes what is noted of a device.
func Forget(dir, device string) error {
	f := filesOf(dir, device)
	var errs []error
	for _, name := range []string{f.state, f.accept, f.down} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ErrWatched is returned when a process watches the device already.
var ErrWatched = errors.New("is watched already")

// lockDevice makes the caller the one that watches a device, until the file is closed.
func (f files) lockDevice(device string) (*os.File, error) {
	lock, err := lockFile(f.lock)
	if errors.Is(err, errHeld) {
		err = fmt.Errorf("%s %w", device, ErrWatched)
	}
	return lock, err
}

// Watched reports whether a process watches a device. It is in nobody's way.
func Watched(dir, device string) bool { return held(filesOf(dir, device).lock) }

var errHeld = errors.New("somebody holds the lock")

// lockFile makes a file and locks it, until it is closed; the error is errHeld if somebody
// else does.
func lockFile(name string) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// Of the open file, not of the process.
	err = unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == unix.EAGAIN || err == unix.EACCES {
		err = errHeld
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// held reports whether somebody holds the lock of a file.
func held(name string) bool {
	lock, err := os.Open(name)
	if err != nil {
		return false
	}
	defer lock.Close()
	other := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(lock.Fd(), unix.F_OFD_GETLK, &other)
	return err == nil && other.Type != unix.F_UNLCK
}
