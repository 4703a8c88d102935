package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTime = 2 * time.Minute // of a machine that has much to do
	stopTime  = 2 * time.Minute
)

// A daemon is one run of tierd.
type daemon struct {
	site    *site
	cmd     *exec.Cmd
	log     logBuffer
	ended   chan struct{} // closed when the process is gone
	tcp     string        // host:port of the NBD server
	metrics string        // host:port
}

// logBuffer collects what the daemon writes.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// launch starts tierd and does not wait for it.
func (s *site) launch() *daemon {
	s.t.Helper()
	return s.launchUnder()
}

// launchUnder starts tierd by way of another program.
func (s *site) launchUnder(wrapper ...string) *daemon {
	s.t.Helper()
	return s.launchWith(func(*exec.Cmd) {}, wrapper...)
}

// launchWith starts what prepare has changed.
func (s *site) launchWith(prepare func(*exec.Cmd), wrapper ...string) *daemon {
	s.t.Helper()
	d := &daemon{site: s, ended: make(chan struct{})}
	line := append(wrapper, filepath.Join(*binDir, "tierd"), "--config", s.config, "--log-format", "json")
	line = append(line, s.flags...)
	d.cmd = exec.Command(line[0], line[1:]...)
	d.cmd.Dir = s.dir
	d.cmd.Stderr = &d.log
	prepare(d.cmd)
	if err := d.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // the state says it all
		close(d.ended)
	}()
	s.t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if s.t.Failed() {
			s.t.Logf("log of the daemon:\n%s", tail(d.log.String(), 60))
		}
	})
	return d
}

func tail(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "")
}

// start starts tierd and returns when it answers.
func (s *site) start() *daemon {
	s.t.Helper()
	d := s.launch()
	s.await(d)
	return d
}

// await returns when d answers.
func (s *site) await(d *daemon) {
	s.t.Helper()
	for deadline := time.Now().Add(startTime); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-d.ended:
			s.t.Fatalf("the daemon ended with %v", d.cmd.ProcessState)
		default:
		}
		if d.addresses() {
			if c, err := net.Dial("unix", s.admin); err == nil {
				_ = c.Close()
				return
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatal("the daemon is not ready")
		}
	}
}

// addresses takes the ports from the log and reports whether they are there yet.
func (d *daemon) addresses() bool {
	for line := range strings.Lines(d.log.String()) {
		var l struct {
			Msg     string
			NBD     []string
			Metrics string
		}
		if json.Unmarshal([]byte(line), &l) != nil || l.Msg != "serving" {
			continue
		}
		for _, a := range l.NBD {
			if port, isTCP := strings.CutPrefix(a, "tcp:"); isTCP {
				d.tcp = port
			}
		}
		d.metrics = l.Metrics
		return true
	}
	return false
}

// stop asks the daemon to stop, which it has to do cleanly.
func (d *daemon) stop() {
	d.site.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.wait(); code != 0 {
		d.site.t.Errorf("stopped daemon: exit code %d, want 0\n%s", code, tail(d.log.String(), 60))
	}
}

// kill ends the daemon as the kernel would.
func (d *daemon) kill() {
	d.site.t.Helper()
	d.signal(syscall.SIGKILL)
	d.wait()
}

func (d *daemon) signal(sig os.Signal) {
	d.site.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.site.t.Fatalf("signal daemon: %v\n%s", err, tail(d.log.String(), 60))
	}
}

// wait returns the exit code.
func (d *daemon) wait() int {
	d.site.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(stopTime):
		d.signal(syscall.SIGQUIT) // shows where it hangs
		<-d.ended
		d.site.t.Fatalf("the daemon did not end in %s\n%s", stopTime, d.log.String())
	}
	return d.cmd.ProcessState.ExitCode()
}

// logged reports whether the log has a line with all of the texts.
func (d *daemon) logged(texts ...string) bool {
	for line := range strings.Lines(d.log.String()) {
		all := true
		for _, t := range texts {
			all = all && strings.Contains(line, t)
		}
		if all {
			return true
		}
	}
	return false
}

// refused starts tierd, which has to end by itself, and returns what it left.
func (s *site) refused() result {
	s.t.Helper()
	return execute(s.t, s.dir, filepath.Join(*binDir, "tierd"), append([]string{"--config", s.config}, s.flags...)...)
}

// running starts a daemon on a new pool.
func running(t testing.TB, l layout) (*site, *daemon) {
	t.Helper()
	s := newPool(t, l)
	return s, s.start()
}
