package e2e

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"tierd/nbd/client"
	"tierd/nbd/wire"
)

// TestSignalStorm (CVE-2015-0847, CVE-2013-7441): signals by the hundred under load, with
// clients that come and go in the middle of the handshake, disturb nobody; and the stop
// is a good one, however often it is asked for.
func TestSignalStorm(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	v := s.dial("v")
	stop := make(chan struct{})
	ended := make(chan error, 2)
	go func() { // clients that go away
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			c, err := net.Dial("unix", s.nbd)
			if errors.Is(err, syscall.EAGAIN) {
				continue // too many at a time: the line before the server is full
			}
			if err != nil {
				ended <- err
				return
			}
			_, _ = c.Write(make([]byte, i%40))
			_ = c.Close()
		}
	}()
	go func() { // one that stays
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := v.WriteAt(make([]byte, 4096), i%1000*4096, i%50 == 0); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 300 {
		d.signal(syscall.SIGHUP)
		time.Sleep(time.Millisecond)
	}
	close(stop)
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("a client under the storm: %v", err)
		}
	}
	c, err := client.Dial(t.Context(), s.uri("v"))
	if err != nil {
		t.Fatalf("after the storm: %v", err)
	}
	_ = c.Close()
	v.hangUp()
	d.stop()

	// A second signal cuts the waiting short; there is nothing to wait for here.
	d = s.start()
	for range 20 {
		if d.cmd.Process.Signal(syscall.SIGTERM) != nil {
			break
		}
	}
	if code := d.wait(); code != 0 {
		t.Errorf("after many SIGTERMs: exit code %d\n%s", code, tail(d.log.String(), 20))
	}
	s.start().stop()
}

// TestStopWithClientsInTheHandshake (CVE-2024-7409): two hundred clients somewhere in the
// handshake, and one that reads a long reply a little at a time, do not keep SIGTERM from
// ending the daemon well.
func TestStopWithClientsInTheHandshake(t *testing.T) {
	t.Parallel()
	const length = 32 << 20
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	for i := range 200 {
		c, err := net.Dial("unix", s.nbd)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		greeting := make([]byte, wire.GreetingSize)
		if _, err := io.ReadFull(c, greeting); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte{0, 0, 0, 3, 'I', 'H', 'A', 'V', 'E', 'O', 'P', 'T', 0, 0}[:i%14])
	}
	c, err := net.Dial("unix", s.nbd)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(append([]byte{0, 0, 0, 3}, "IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x01v"...)) // EXPORT_NAME
	request := make([]byte, wire.RequestSize)
	wire.PutRequest(request, 0, wire.CmdRead, 1, 0, length)
	_, _ = c.Write(request)
	head := make([]byte, wire.GreetingSize+10+wire.SimpleReplySize)
	if _, err = io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGTERM)
	for p := make([]byte, 256<<10); err == nil; _, err = c.Read(p) {
		time.Sleep(time.Millisecond)
	}
	if code := d.wait(); code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, tail(d.log.String(), 20))
	}
}
