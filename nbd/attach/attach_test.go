package attach

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tierd/nbd"
	"tierd/nbd/client"
	"tierd/nbd/kernel"
	"tierd/nbd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRestart: a server that goes and comes back gets the device again, with all of
// its sockets, whether or not the kernel's events arrive.
func TestRestart(t *testing.T) {
	for _, events := range []bool{true, false} {
		for _, connections := range []int{1, 4} {
			r := newRig(t)
			r.serve(whole)
			stop, ready := r.run(r.uri(), connections)
			if !ready() {
				t.Fatal(stop())
			}
			if d := r.device; d.Size != 1<<20 || d.BlockSize != 4096 || len(d.Sockets) != connections || d.Backend != "tierd:v-1" ||
				d.Timeout != time.Second || d.DeadTimeout != time.Minute || d.ServerFlags&wire.FlagCanMultiConn == 0 || d.ServerFlags&wire.FlagSendDF != 0 {
				t.Errorf("the kernel was told %+v", d)
			}
			if err := r.prove(""); err != nil {
				t.Fatal(err)
			}
			first := r.state()
			for i := range 2 {
				r.stop()
				// There is nothing to accept, and a folder that somebody has removed is made
				// again.
				dir := r.stateDir()
				if err := AcceptLoss(dir, "/dev/nbd3"); !errors.Is(err, ErrNoLoss) {
					t.Errorf("AcceptLoss: got %v, want %v", err, ErrNoLoss)
				}
				if i == 1 {
					if err := os.RemoveAll(dir); err != nil {
						t.Fatal(err)
					}
				}
				if events {
					r.deaths <- 9 // another device
					r.deaths <- 3
				}
				time.Sleep(time.Millisecond) // or not: the server is away for a while
				r.serve(whole)
				r.await(PhaseAttached, i+1)
				if err := r.prove(""); err != nil {
					t.Errorf("after restart %d: %v", i, err)
				}
			}
			if r.ignored != 0 {
				t.Errorf("%d sockets were ignored", r.ignored)
			}
			if s := r.state(); s.Generation < first.Generation+2 || s.ClientID != first.ClientID {
				t.Errorf("first %+v, then %+v", first, s)
			}
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	}
}

// TestTakeOver: the device stays attached when Run ends, and the next one goes on.
func TestTakeOver(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 2)
	if !ready() {
		t.Fatal(stop())
	}
	if !Watched(r.stateDir(), "/dev/nbd3") {
		t.Error("it is not seen that the device is watched")
	}
	if _, again := r.run(r.uri(), 2); again() {
		t.Error("a second Run for a device")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if Watched(r.stateDir(), "/dev/nbd3") {
		t.Error("it counts as watched after the end")
	}
	if err := r.prove(""); err != nil {
		t.Errorf("with nobody watching: %v", err)
	}
	if s := r.state(); s.Phase != PhaseUnwatched {
		t.Errorf("state %+v", s)
	}
	if _, other := r.run(r.uri()+"&x=1", 2); other() {
		t.Error("a Run for another address took the device over")
	}
	stop, ready = r.run(r.uri(), 2)
	if !ready() {
		t.Fatal(stop())
	}
	r.await(PhaseAttached, 1)
	// The first may have used generations that it could not note.
	if s := r.state(); s.Generation < epoch {
		t.Errorf("generation %d after the takeover, want at least %d", s.Generation, epoch)
	}
	if err := r.prove(""); err != nil || r.ignored != 0 {
		t.Errorf("after the takeover: %v, %d sockets ignored", err, r.ignored)
	}
	// It ends by itself when the device is disconnected, and nothing is left.
	r.drop()
	eventually(t, "the state is forgotten", func() bool { return r.state().Device == "" })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestRefusals: what is there now is not what was attached.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		then   exports
		say    string
		accept bool // makes it good
	}{
		{"continuity", exports{"v-1", "c-2", 1 << 20}, "may be lost", true},
		{"another volume", exports{"v-2", "c-1", 1 << 20}, "volume", false},
		{"smaller", exports{"v-1", "c-1", 1 << 19}, "bytes", false},
		{"larger", exports{"v-1", "c-1", 1 << 21}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.serve(whole)
			stop, ready := r.run(r.uri(), 2)
			if !ready() {
				t.Fatal(stop())
			}
			r.stop()
			r.serve(tc.then)
			if tc.say == "" {
				r.await(PhaseAttached, 1)
				return
			}
			r.await(PhaseRefused, 0)
			if s := r.state(); !strings.Contains(s.Problem, tc.say) {
				t.Errorf("problem %q, want something with %q", s.Problem, tc.say)
			}
			if r.reconfigs != 0 {
				t.Error("the kernel got sockets")
			}
			err := AcceptLoss(r.stateDir(), "/dev/nbd3")
			if got := !errors.Is(err, ErrNoLoss); got != tc.accept || got && err != nil {
				t.Errorf("AcceptLoss: %v, want it to be possible: %t", err, tc.accept)
			}
			if tc.accept {
				r.await(PhaseAttached, 1)
				if s := r.state(); s.Continuity != "c-2" || s.Offered != "" {
					t.Errorf("state %+v", s)
				}
				if err := AcceptLoss(r.stateDir(), "/dev/nbd3"); !errors.Is(err, ErrNoLoss) {
					t.Errorf("AcceptLoss again: got %v, want %v", err, ErrNoLoss)
				}
				if _, err := os.Stat(filesOf(r.stateDir(), "/dev/nbd3").accept); err == nil {
					t.Error("the acceptance of a loss is kept")
				}
				return
			}
			r.stop()
			r.serve(whole)
			r.await(PhaseAttached, 1) // the right one is back
		})
	}
}

func TestBeginRefuses(t *testing.T) {
	r := newRig(t)
	_, ready := r.run(r.uri(), 1)
	if ready() {
		t.Error("attached without a server")
	}
	if s := r.state(); s.Device != "" {
		t.Errorf("noted: %+v", s)
	}
	r.serve(whole)
	r.on = true
	r.tell("pid", "9")
	stop, ready := r.run(r.uri(), 1)
	if ready() || !strings.Contains(stop().Error(), "in use") {
		t.Errorf("a device in use: %v", stop())
	}
}

// TestUnreadableState: what is noted may be cut short, or be anything. Of a device that is
// down it does not matter; one that is up is left alone.
func TestUnreadableState(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 1)
	if !ready() {
		t.Fatal(stop())
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	file := filesOf(r.stateDir(), "/dev/nbd3").state
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":           "",
		"cut short":       string(good[:len(good)/2]),
		"nothing in it":   "{}",
		"another device":  strings.Replace(string(good), "nbd3", "nbd4", 1),
		"no client id":    strings.Replace(string(good), `"client_id": "`, `"client_id": "x`, 1),
		"no connections":  strings.Replace(string(good), `"connections": 1`, `"connections": 0`, 1),
		"another's bytes": string([]byte{0xff, 0, 1, 2}),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r.on = true
			r.tell("pid", "9")
			stop, ready := r.run(r.uri(), 1)
			if ready() {
				t.Error("a device of which nothing is known was taken over")
			} else if err := stop(); !strings.Contains(err.Error(), "detach --force") {
				t.Errorf("got %v, want what can be done", err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != text {
				t.Errorf("what was noted is now %q, %v", b, err)
			}
			r.drop()
			stop, ready = r.run(r.uri(), 1)
			if !ready() {
				t.Fatal(stop())
			}
			r.await(PhaseAttached, 0)
			if err := stop(); err != nil {
				t.Error(err)
			}
			r.drop()
		})
	}
}

// TestAcceptOne: who accepts a loss accepts no other that comes after it.
func TestAcceptOne(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 2)
	if !ready() {
		t.Fatal(stop())
	}
	r.stop()
	r.serve(exports{"v-1", "c-2", 1 << 20})
	r.await(PhaseRefused, 0)
	r.stop()
	eventually(t, "it has stopped to be refused", func() bool { return r.state().Phase == PhaseReconnecting })
	if err := AcceptLoss(r.stateDir(), "/dev/nbd3"); !errors.Is(err, ErrNoLoss) {
		t.Errorf("AcceptLoss without a server: got %v, want %v", err, ErrNoLoss)
	}
	// As if it had been quicker.
	if err := os.WriteFile(filesOf(r.stateDir(), "/dev/nbd3").accept, []byte("c-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.serve(exports{"v-1", "c-3", 1 << 20})
	eventually(t, "it is refused", func() bool { return r.state().Offered == "c-3" })
	if r.reconfigs != 0 {
		t.Error("the kernel got sockets")
	}
	if err := AcceptLoss(r.stateDir(), "/dev/nbd3"); err != nil {
		t.Fatal(err)
	}
	r.await(PhaseAttached, 1)
	if s := r.state(); s.Continuity != "c-3" {
		t.Errorf("continuity %q", s.Continuity)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestNoRoomForState: a device is connected again although nothing can be noted, and the
// next Run is told from this one by the server all the same.
func TestNoRoomForState(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 1)
	if !ready() {
		t.Fatal(stop())
	}
	files := filesOf(r.stateDir(), "/dev/nbd3")
	before := r.state()
	// Folders are in the way of the files.
	if err := os.Mkdir(files.state+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lock cannot be made", func() bool {
		return os.Remove(files.lock) == nil && os.Mkdir(files.lock, 0o700) == nil
	})
	r.stop()
	r.serve(whole)
	eventually(t, "the kernel has new sockets", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.reconfigs == 1
	})
	if err := r.prove(""); err != nil {
		t.Error(err)
	}
	if got := r.state(); got != before {
		t.Errorf("noted: %+v", got)
	}
	if err := errors.Join(os.Remove(files.state+".new"), os.Remove(files.lock)); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.serve(whole)
	eventually(t, "it is noted again", func() bool {
		s := r.state()
		return s.Phase == PhaseAttached && s.Reconnects > 0
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	// A Run that cannot note that it is there would be taken for the one before.
	if err := os.Mkdir(files.state+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	asked, reconfigs := r.asked, r.reconfigs
	_, ready = r.run(r.uri(), 1)
	eventually(t, "it has tried", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.asked > asked+2
	})
	r.mu.Lock()
	if r.reconfigs != reconfigs {
		t.Error("the kernel got sockets")
	}
	r.mu.Unlock()
	if err := os.Remove(files.state + ".new"); err != nil {
		t.Fatal(err)
	}
	if !ready() {
		t.Error("not taken over")
	}
}

// TestDeathsOfOthers: many connections of other devices that die put off no look at this.
func TestDeathsOfOthers(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 1)
	if !ready() {
		t.Fatal(stop())
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case r.deaths <- 9:
			case <-done:
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	r.stop()
	r.serve(whole)
	r.await(PhaseAttached, 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestLock: who watches a device goes on being the only one when its file is removed,
// and gives way to one that was quicker then.
func TestLock(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 1)
	if !ready() {
		t.Fatal(stop())
	}
	dir := r.stateDir()
	files := filesOf(dir, "/dev/nbd3")
	if lock, err := files.lockDevice("/dev/nbd3"); !errors.Is(err, ErrWatched) {
		lock.Close()
		t.Fatalf("got %v, want %v", err, ErrWatched)
	}
	if err := os.Remove(files.lock); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is locked again", func() bool { return Watched(dir, "/dev/nbd3") })

	// Another is quicker, in a file that takes the place of the first.
	other, err := filesOf(r.dir, "/dev/nbd3").lockDevice("/dev/nbd3")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	before := r.state()
	if err := os.Rename(filesOf(r.dir, "/dev/nbd3").lock, files.lock); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Fatal("it does not give way")
	}
	if err := stop(); !errors.Is(err, ErrWatched) {
		t.Errorf("got %v, want %v", err, ErrWatched)
	}
	if got := r.state(); got != before {
		t.Errorf("what is noted was %+v, and is %+v", before, got)
	}
}

func TestIndexOf(t *testing.T) {
	for device, want := range map[string]int{"/dev/nbd0": 0, "/dev/nbd15": 15, "/dev/./nbd1": 1, "nbd0": -1, "/dev/nbd": -1, "/dev/nbd0p1": -1, "/dev/sda": -1, "/dev/nbd01": -1, "/dev/nbd-1": -1, "/tmp/nbd0": -1} {
		got, err := IndexOf(device)
		if (err == nil) != (want >= 0) || err == nil && int(got) != want {
			t.Errorf("IndexOf(%q) = %d, %v, want %d", device, got, err, want)
		}
	}
}

// TestWithinTLS: the kernel's socket is plain, and goes through this process.
func TestWithinTLS(t *testing.T) {
	r := newRig(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "s"}, DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "ca-cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := nbd.Config{Exports: whole, TLS: nbd.TLSRequire, TLSConfig: func() *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}}
	listen := func() {
		l, err := net.Listen("unix", r.sock)
		if err != nil {
			t.Fatal(err)
		}
		r.serveOn(l, cfg)
	}
	listen()
	stop, ready := r.run("nbds+unix:///home?socket="+r.sock+"&tls-certificates="+r.dir, 2)
	if !ready() {
		t.Fatal(stop())
	}
	if err := r.prove(""); err != nil {
		t.Fatal(err)
	}
	r.stop()
	listen()
	r.await(PhaseAttached, 1)
	if err := r.prove(""); err != nil {
		t.Error(err)
	}
}

// TestDescribe: of servers of another make nothing is known.
func TestDescribe(t *testing.T) {
	if v, c := describe("tierd volume a continuity b"); v != "a" || c != "b" {
		t.Errorf("got %q, %q", v, c)
	}
	for _, text := range []string{"", "a disk", "tierd volume a continuity", "other volume a continuity b"} {
		if v, c := describe(text); v+c != "" {
			t.Errorf("%q: got %q, %q", text, v, c)
		}
	}
	var _ Kernel = (*kernel.Client)(nil)
	_ = client.Info{}
}
