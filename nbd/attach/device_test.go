package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/clock"
)

// TestTakeDown: a device that is disconnected while it is in use counts as connected until
// that ends, and is not connected again meanwhile, whether or not the server is there.
func TestTakeDown(t *testing.T) {
	for _, away := range []bool{false, true} {
		r := newRig(t)
		r.serve(whole)
		stop, ready := r.run(r.uri(), 1)
		if !ready() {
			t.Fatal(stop())
		}
		if away {
			r.stop()
		}
		err := TakeDown(r.stateDir(), "/dev/nbd3", func() error {
			if err := TakeDown(r.stateDir(), "/dev/nbd3", nil); err == nil {
				t.Error("two at once take it down")
			}
			r.mu.Lock()
			r.failure = unix.EINVAL
			for _, fd := range r.sockets {
				(&link{fd: fd}).end()
			}
			r.sockets = nil
			r.mu.Unlock()
			select {
			case <-r.ended:
			case <-time.After(patience):
				t.Error("it goes on watching")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if s := r.state(); s.Device != "" || r.reconfigs != 0 {
			t.Errorf("noted %+v, the kernel got sockets %d times", s, r.reconfigs)
		}
	}
}

// TestAnothersDevice: what another program has made of the device meanwhile is left alone.
func TestAnothersDevice(t *testing.T) {
	for name, tc := range map[string]struct {
		first, then string // what the kernel tells of the device; "": nothing
		ours        bool
	}{
		"ours":                     {"tierd:v-1", "tierd:v-1", true},
		"nbd-client's":             {"tierd:v-1", "", false},
		"another volume":           {"tierd:v-1", "tierd:v-2", false},
		"a kernel that tells none": {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.silent = tc.first == ""
			r.serve(whole)
			stop, ready := r.run(r.uri(), 1)
			if !ready() {
				t.Fatal(stop())
			}
			change := func() {
				if err := os.Remove(r.sys("backend")); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				if tc.then != "" {
					r.tell("backend", tc.then)
				}
			}
			if !tc.ours { // while it is watched
				noted, err := os.ReadFile(filesOf(r.stateDir(), "/dev/nbd3").state)
				if err != nil {
					t.Fatal(err)
				}
				r.mu.Lock()
				change()
				r.mu.Unlock()
				select {
				case <-r.ended:
				case <-time.After(patience):
					t.Fatal("it goes on watching")
				}
				if err := os.WriteFile(filesOf(r.stateDir(), "/dev/nbd3").state, noted, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			change()
			stop, ready = r.run(r.uri(), 1)
			if got := ready(); got != tc.ours {
				t.Errorf("taken over: %t, want %t", got, tc.ours)
			} else if err := stop(); !got && !strings.Contains(err.Error(), "something else since") {
				t.Errorf("got %v, want what is the matter", err)
			}
			if !tc.ours && r.reconfigs != 0 {
				t.Error("the kernel got sockets")
			}
		})
	}
}

// TestOpenDevice: a device that somebody looks at, as udev does, is not in use by that.
func TestOpenDevice(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	r.on = true
	asked := r.asked
	stop, ready := r.run(r.uri(), 1)
	eventually(t, "it is looked at twice", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.asked > asked+1
	})
	r.drop()
	if !ready() {
		t.Fatal(stop())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNoProof: a device that cannot be asked is believed in, and an error is an answer, as
// of a block on a backing that failed: sockets are not replaced for ever because of it.
func TestNoProof(t *testing.T) {
	for _, proof := range []error{fmt.Errorf("%w: no memory", ErrNoProof), unix.EIO} {
		r := newRig(t)
		r.serve(whole)
		stop, ready := r.run(r.uri(), 1)
		if !ready() {
			t.Fatal(stop())
		}
		r.setProof(func() error { return proof })
		r.stop()
		r.serve(whole)
		r.await(PhaseAttached, 1)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if r.reconfigs != 1 {
			t.Errorf("%v: the kernel got sockets %d times", proof, r.reconfigs)
		}
	}
}

// TestStaleProof: what was read from a server that has gone since proves nothing.
func TestStaleProof(t *testing.T) {
	asked := 0
	a := &attachment{o: Options{Prove: func(string) error { asked++; return nil }, Clock: clock.Real{}}, proving: make(chan error, 1)}
	a.proving <- nil
	if err := a.prove(t.Context()); err != nil || asked != 1 {
		t.Errorf("got %v, and the device was asked %d times, want once", err, asked)
	}
}

// TestServerGoesWhileItIsProved: a server that comes, and goes before the device has
// answered, is tried again at once, however long the read hangs.
func TestServerGoesWhileItIsProved(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 2)
	if !ready() {
		t.Fatal(stop())
	}
	answered := make(chan struct{})
	r.setProof(func() error { <-answered; return nil })
	r.stop()
	r.serve(whole)
	eventually(t, "the kernel has new sockets", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.reconfigs == 1
	})
	r.stop()
	eventually(t, "it is seen that the server has gone", func() bool { return strings.Contains(r.state().Problem, "gone again") })
	r.serve(whole)
	eventually(t, "the kernel has newer sockets", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.reconfigs == 2
	})
	close(answered)
	r.await(PhaseAttached, 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestUsers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"proc/1/mountinfo":  "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw," + strings.Repeat("x", 1<<17) + "\n31 22 43:1 / /srv/data rw - ext4 /dev/nbd0p1 rw\n32 22 43:32 / /mnt rw - xfs /dev/nbd1 rw\n",
		"proc/7/mountinfo":  "31 22 43:1 / /srv/data rw - ext4 /dev/nbd0p1 rw\n40 22 43:128 / /of/a/container rw - xfs /dev/disk/by-label/x rw\n",
		"proc/9/mountinfo":  "cut",
		"sys/nbd4/dev":      "43:128\n",
		"proc/swaps":        "Filename Type Size Used Priority\n/dev/nbd1 partition 1 0 -2\n",
		"sys/nbd0/nbd0p1/x": "", "sys/nbd1/x": "", "sys/nbd2/holders/dm-0": "", "sys/nbd3/x": "",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for device, want := range map[string]string{
		"/dev/nbd0": "/dev/nbd0 is mounted at /srv/data",
		"/dev/nbd2": "/dev/nbd2 is used by /dev/dm-0",
		"/dev/nbd3": "",
		"/dev/nbd4": "/dev/nbd4 is mounted at /of/a/container",
	} {
		got, err := Users(filepath.Join(dir, "proc"), filepath.Join(dir, "sys"), device)
		if err != nil || strings.Join(got, "; ") != want {
			t.Errorf("%s: got %q, %v, want %q", device, got, err, want)
		}
	}
	if got, _ := Users(filepath.Join(dir, "proc"), filepath.Join(dir, "sys"), "/dev/nbd1"); len(got) != 2 {
		t.Errorf("/dev/nbd1: got %q, want a mount and swap", got)
	}
}
