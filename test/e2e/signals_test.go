package e2e

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"tierd/nbd/client"
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
