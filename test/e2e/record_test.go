package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/control"
	"tierd/pkg/trace"
)

// recorder is a tierctl that records.
type recorder struct {
	s      *site
	file   string
	cmd    *exec.Cmd
	out    bytes.Buffer
	errOut bytes.Buffer
}

// record starts tierctl trace record on a volume and returns when every request is
// recorded: the count of bytes is there with the first look at them.
func (s *site) record(volume, file string, args ...string) *recorder {
	s.t.Helper()
	r := &recorder{s: s, file: s.path(file)}
	r.cmd = exec.Command(filepath.Join(*binDir, "tierctl"), append([]string{"--config", s.config, "trace", "record", volume, "-o", r.file, "-o", "json"}, args...)...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errOut
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	eventually(s.t, "the recording of "+volume, 0, func() bool {
		var list []control.TraceRecording
		s.ctlJSON(&list, "trace", "list")
		return slices.ContainsFunc(list, func(r control.TraceRecording) bool { return r.Volume == volume && r.Bytes > 0 })
	})
	return r
}

// end waits for tierctl and returns what is in its file.
func (r *recorder) end(code int) (trace.Summary, trace.Recording) {
	t := r.s.t
	t.Helper()
	_ = r.cmd.Wait() // the exit code says it
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("tierctl trace record: exit code %d, want %d\n%s%s", got, code, &r.out, &r.errOut)
	}
	tr, err := trace.Open(r.file)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	sum, err := trace.Summarize(tr, mib)
	if err != nil {
		t.Fatal(err)
	}
	info, _ := trace.Recorded(tr)
	return sum, info
}

// A load on two volumes is recorded while extents move; a recorder is killed, one is
// interrupted, one sees the daemon stop. What is recorded in order is what the load did.
func TestRecordingOfALoad(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 64MiB}, {name: mail, size: 64MiB}", relocation: "{cycle: 20ms, hysteresis: 0%}", extra: shortHeat})
	home, mail, killed := s.record("home", "home.trace"), s.record("mail", "mail.trace", "--compress"), "killed.trace"
	s.ctlFails(1, "tierctl: volume home is being recorded: busy", "trace", "record", "home", "-o", s.path("second.trace"))
	const ops = 5000
	args := []string{"--ops", "5000", "--read", "60%", "--trim", "10%", "--pattern", "zipf", "--grain", "64KiB", "--depth", "8", "--flush-every", "500"}
	s.bench("home", args...)
	s.bench("mail", args...)

	if err := home.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	sum, info := home.end(0)
	if !info.Ended || info.Reason != "it was stopped" || info.Dropped != 0 || sum.Records != ops || sum.Flushes == 0 || sum.Reads == 0 || sum.Trims == 0 {
		t.Errorf("the recording of home: %+v, %+v", sum, info)
	}
	var told struct{ Records uint64 }
	if err := json.Unmarshal(home.out.Bytes(), &told); err != nil || told.Records != info.Records {
		t.Errorf("tierctl tells of %d records, %v; the file of %d", told.Records, err, info.Records)
	}
	s.ctl("simulate", "--policy", "static,planner", "--tiers", "ssd:200us:10%,hdd:12ms:rest", home.file)

	k := s.record("home", killed)
	if err := k.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = k.cmd.Wait()
	eventually(t, "the end of the killed recording", 0, func() bool { return !strings.Contains(s.ctl("trace", "list"), "home ") })
	again := s.record("home", "again.trace")
	s.ctl("volume", "delete", "home", "--force")
	if _, info := again.end(0); info.Reason != "the volume was deleted" {
		t.Errorf("the recording of a volume that is deleted: %+v", info)
	}
	if n := d.metric("tierd_trace_dropped_records_total"); n != 0 {
		t.Errorf("%g requests were dropped", n)
	}

	d.stop()
	sum, info = mail.end(0)
	if !info.Ended || info.Reason != "tierd stopped" || sum.Records != ops {
		t.Errorf("the recording of mail: %+v, %+v", sum, info)
	}
	if _, err := os.Stat(s.path("second.trace")); err == nil {
		t.Error("a recording that never began left a file")
	}
	s.checkPool(true)
}
