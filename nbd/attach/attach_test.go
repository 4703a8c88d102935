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
	"fmt"
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
				// What is accepted before there is anything to accept is not kept, and a
				// folder that somebody has removed is made again.
				dir := filepath.Join(r.dir, "state")
				if err := AcceptLoss(dir, "/dev/nbd3"); err != nil {
					t.Fatal(err)
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
				if _, err := os.Stat(filesOf(dir, "/dev/nbd3").accept); err == nil {
					t.Error("the acceptance of a loss is kept")
				}
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
	if !Watched(filepath.Join(r.dir, "state"), "/dev/nbd3") {
		t.Error("it is not seen that the device is watched")
	}
	if _, again := r.run(r.uri(), 2); again() {
		t.Error("a second Run for a device")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if Watched(filepath.Join(r.dir, "state"), "/dev/nbd3") {
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
			if err := AcceptLoss(filepath.Join(r.dir, "state"), "/dev/nbd3"); err != nil {
				t.Fatal(err)
			}
			if tc.accept {
				r.await(PhaseAttached, 1)
				if s := r.state(); s.Continuity != "c-2" {
					t.Errorf("continuity %q", s.Continuity)
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
	file := filesOf(filepath.Join(r.dir, "state"), "/dev/nbd3").state
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

// TestNoProof: a device that cannot be asked is believed in.
func TestNoProof(t *testing.T) {
	r := newRig(t)
	r.serve(whole)
	stop, ready := r.run(r.uri(), 1)
	if !ready() {
		t.Fatal(stop())
	}
	r.setProof(func() error { return fmt.Errorf("%w: no memory", ErrNoProof) })
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
	dir := filepath.Join(r.dir, "state")
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

func TestUsers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"proc/mounts":       "/dev/sda1 / ext4 rw 0 0\n/dev/nbd0p1 /srv/data ext4 rw 0 0\n/dev/nbd1 /mnt xfs rw 0 0\n",
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
