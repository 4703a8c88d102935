package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/control"
	"tierd/pkg/trace"
)

func TestTraceRecord(t *testing.T) {
	s := &cannedService{}
	socket := serve(t, s)
	for _, line := range []string{"-o FILE", "--file FILE -o table", "-o json -o FILE --for 90s --max-size 64KiB --compress", "-o json --file FILE"} {
		file := filepath.Join(t.TempDir(), "home.trace")
		s.asked = nil
		code, out, stderr := tierctl(t, append([]string{"trace", "record", "home", "--socket", socket}, strings.Fields(strings.ReplaceAll(line, "FILE", file))...)...)
		if code != exitDone || stderr != "recording volume home; Ctrl-C, or tierctl trace stop home, ends it\n" {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
		data, err := os.ReadFile(file)
		var want bytes.Buffer
		if err := errors.Join(err, writeRecording(&want, "its time is over")); err != nil || !bytes.Equal(data, want.Bytes()) {
			t.Errorf("%s: %v, %d bytes, want %d", line, err, len(data), want.Len())
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", line, info.Mode(), err)
		}
		wantAsked := control.TraceRecordRequest{Volume: "home", MaxSizeBytes: 1 << 30}
		if strings.Contains(line, "json") {
			var got traceRecorded
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Errorf("%s: %v: %s", line, err, out)
			}
			if want := (traceRecorded{Volume: "home", File: file, Ended: true, Reason: "its time is over", Records: 100, DroppedRecords: 3, Bytes: int64(len(data)), SpanSeconds: 120}); got != want {
				t.Errorf("%s: %+v, want %+v", line, got, want)
			}
		} else if want := fmt.Sprintf("recorded 100 requests of volume home in 2m, %s in %s; it ended because its time is over\n3 requests missing, because they came faster than they could be written\n", size(int64(len(data))), file); out != want {
			t.Errorf("%s: got %s want %s", line, out, want)
		}
		if strings.Contains(line, "--for") {
			wantAsked.ForSeconds, wantAsked.MaxSizeBytes, wantAsked.Compress = 90, 64<<10, true
		}
		asked := s.asked[0].(control.TraceRecordRequest)
		if asked.Token == "" {
			t.Errorf("%s: no token", line)
		}
		if asked.Token = ""; asked != wantAsked {
			t.Errorf("%s: asked %+v, want %+v", line, asked, wantAsked)
		}
	}
}

func TestTraceRecordRefusals(t *testing.T) {
	s := &cannedService{record: func(context.Context, control.TraceRecordRequest, io.Writer) error { return control.ErrBusy }}
	socket := serve(t, s)
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	exists := "tierctl: open " + there + ": file exists\nhint: a recording replaces nothing; name another path\n"
	tests := []struct {
		line string
		code int
		want string
	}{
		{"home", 2, "tierctl: trace record: needs a file: -o FILE\n"},
		{"home -o a -o b", 2, "tierctl: trace record: one file only (got \"a\" and \"b\")\n"},
		{"home -o a --max-size 1KiB", 2, "tierctl: trace record: --max-size must be 4KiB or more (got 1KiB)\n"},
		{"home -o a --for yesterday", 2, "tierctl: trace record: invalid argument \"yesterday\" for \"--for\" flag: must be a duration such as 30s, 5m, 24h or 7d (got \"yesterday\")\n"},
		{"home -o " + there, 1, exists},
		{"home --dry-run -o " + there, 1, exists},
		{"home --dry-run -o " + dir + "/none/x", 1, "tierctl: stat " + dir + "/none: no such file or directory\n"},
		{"home --dry-run -o " + there + "/x", 1, "tierctl: lstat " + there + "/x: not a directory\n"},
		{"nix -o " + dir + "/new", 1, "tierctl: volume \"nix\": not found\n"},
		{"home -o " + dir + "/new", 1, "tierctl: busy\n"},
		{"nix --dry-run -o " + dir + "/new", 1, "tierctl: volume \"nix\": not found\n"},
	}
	for _, tt := range tests {
		code, stdout, stderr := tierctl(t, append([]string{"trace", "record", "--socket", socket}, strings.Fields(tt.line)...)...)
		if code != tt.code || stdout != "" || stderr != tt.want {
			t.Errorf("%s: exit code %d, %q, stderr:\n%s\nwant %d:\n%s", tt.line, code, stdout, stderr, tt.code, tt.want)
		}
	}
	code, out, _ := tierctl(t, "trace", "record", "home", "--dry-run", "-o", dir+"/new", "--socket", socket)
	if code != exitDone || out != "volume home could be recorded in "+dir+"/new\n" {
		t.Errorf("dry run: exit code %d, %s", code, out)
	}
	list, err := os.ReadDir(dir)
	if data, _ := os.ReadFile(there); err != nil || len(list) != 1 || string(data) != "precious" {
		t.Errorf("the folder has %v now, and the file %q", list, data)
	}
}

// A recording that is cut short is kept, and the exit code tells.
func TestTraceRecordIsCutShort(t *testing.T) {
	s := &cannedService{}
	socket := serve(t, s)
	tests := []struct {
		name   string
		record func(ctx context.Context, r control.TraceRecordRequest, w io.Writer) error
		want   string
	}{
		{"cut", func(_ context.Context, _ control.TraceRecordRequest, w io.Writer) error {
			return errors.Join(writeRecording(w, ""), control.ErrBusy)
		}, "was cut short after"},
		{"no end", func(_ context.Context, _ control.TraceRecordRequest, w io.Writer) error {
			return writeRecording(w, "")
		}, "has no end"},
	}
	for _, tt := range tests {
		s.record = tt.record
		file := filepath.Join(t.TempDir(), "home.trace")
		code, out, stderr := tierctl(t, "trace", "record", "home", "-o", file, "--socket", socket)
		if code != exitFailed || out != "" || !strings.Contains(stderr, tt.want) || !strings.Contains(stderr, "hint: what was recorded until then can be used") {
			t.Errorf("%s: exit code %d, %s%s", tt.name, code, out, stderr)
		}
		code, out, stderr = tierctl(t, "trace", "info", file)
		if code != exitDone || !strings.Contains(out, "cut short: what is missing is not known") || !strings.Contains(out, "requests     100\n") {
			t.Errorf("%s: info: exit code %d, %s%s", tt.name, code, out, stderr)
		}
	}
}

// The disk of the file is full: the recording ends with that as the reason, and what
// is on the disk is whole.
func TestTraceRecordOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tierd-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small tmpfs cannot be mounted: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	ended := make(chan error, 1)
	socket := serve(t, &cannedService{record: func(ctx context.Context, _ control.TraceRecordRequest, w io.Writer) error {
		tw, err := trace.NewWriter(w, trace.Header{Volume: "home", ExtentSize: 1 << 20}, trace.WriterOptions{})
		for i := int64(0); err == nil && i < 1e6; i++ {
			if err = tw.Write(trace.Record{Offset: i % 7919 << 20, Length: 4096}); err == nil && i%100 == 0 {
				err = tw.Flush()
			}
		}
		ended <- err
		return err
	}})
	file := filepath.Join(dir, "home.trace")
	code, out, stderr := tierctl(t, "trace", "record", "home", "-o", file, "--socket", socket)
	if code != exitFailed || out != "" || !strings.Contains(stderr, " because the disk is full: write ") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	if err := <-ended; err == nil {
		t.Error("the daemon was not told")
	}
	r, err := trace.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sum, err := trace.Summarize(r, 1<<20)
	if info, _ := trace.Recorded(r); err != nil || info.Ended || sum.Records < 5000 || sum.Records%100 != 1 {
		t.Errorf("%d records, %+v, %v", sum.Records, info, err)
	}
}

// interruptible runs tierctl with a context of its own.
func interruptible(t *testing.T, ctx context.Context, args ...string) (wait func() (int, string, string)) {
	var out, errOut bytes.Buffer
	g := &globals{out: &out, errOut: &errOut, defaultConfig: filepath.Join(t.TempDir(), "none.yaml")}
	code := make(chan int, 1)
	go func() { code <- g.run(ctx, args) }()
	return func() (int, string, string) { return <-code, out.String(), errOut.String() }
}

// stoppable is a recording that TraceStop ends, as in the daemon.
type stoppable struct {
	cannedService
	begun, stop chan struct{}
	once        sync.Once
	token       string
	deaf        bool // it does not end
}

func (s *stoppable) TraceRecord(ctx context.Context, r control.TraceRecordRequest, w io.Writer) error {
	s.token = r.Token
	tw, err := trace.NewWriter(w, trace.Header{Volume: "home", ExtentSize: 1 << 20}, trace.WriterOptions{})
	if err != nil {
		return err
	}
	close(s.begun)
	if s.deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	<-s.stop
	return tw.End(time.Second, "it was stopped")
}

func (s *stoppable) TraceStop(_ context.Context, r control.TraceStopRequest) (control.TraceStopped, error) {
	if r.Token != s.token {
		return control.TraceStopped{}, errors.New("another token")
	}
	if s.deaf {
		return control.TraceStopped{}, errors.New("it does not end")
	}
	s.once.Do(func() { close(s.stop) })
	return control.TraceStopped{}, nil
}

// Ctrl-C ends a recording in order; if tierd does not do so, tierctl ends all the same.
func TestTraceRecordIsInterrupted(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		s := &stoppable{begun: make(chan struct{}), stop: make(chan struct{}), deaf: deaf}
		socket := serve(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		file := filepath.Join(t.TempDir(), "home.trace")
		wait := interruptible(t, ctx, "trace", "record", "home", "-o", file, "--socket", socket)
		<-s.begun
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				break // the header has arrived
			}
			if time.Now().After(deadline) {
				t.Fatal("there is no header after a minute")
			}
		}
		cancel()
		code, out, stderr := wait()
		if !deaf && (code != exitDone || !strings.Contains(out, "it ended because it was stopped")) {
			t.Errorf("exit code %d, %s%s", code, out, stderr)
		}
		if deaf && (code != exitFailed || !strings.Contains(stderr, "because tierd did not end it in time")) {
			t.Errorf("deaf: exit code %d, %s%s", code, out, stderr)
		}
	}
}

func TestTraceInfo(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "home.trace")
	var b bytes.Buffer
	if err := errors.Join(writeRecording(&b, "it was stopped"), os.WriteFile(file, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	arc := filepath.Join(dir, "x.lis")
	if err := os.WriteFile(arc, []byte("0 8 0 0\n16384 4096 0 1\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for golden, line := range map[string][]string{"trace-info": {file}, "trace-info-arc": {arc, "--extent-size", "2MiB"}} {
		code, out, stderr := tierctl(t, append([]string{"trace", "info"}, line...)...)
		if code != exitDone || stderr != "" {
			t.Errorf("%s: exit code %d, %s", golden, code, stderr)
		}
		path := filepath.Join("testdata", golden+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || out != string(want) {
			t.Errorf("%s: %v, got:\n%s\nwant:\n%s", golden, err, out, want)
		}
	}
	code, out, _ := tierctl(t, "trace", "info", arc, "-o", "json", "--format", "arc")
	var got traceInfo
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitDone {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	want := traceInfo{File: arc, Format: "arc", Records: 2, Skipped: 1, Reads: 2, Read: 4096 + 2<<20, Disks: 1, Extent: 1 << 20, Extents: 3,
		Skew: []traceSkew{{0.01, 1. / 3}, {0.05, 1. / 3}, {0.1, 1. / 3}, {0.2, 1. / 3}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for line, want := range map[string]string{
		arc + " --extent-size 0": "2 tierctl: trace info: --extent-size must be above 0\n",
		arc + " --format tar":    "2 tierctl: trace info: --format must be one of " + formatNames() + " (got \"tar\")\n",
		dir + "/none":            "1 tierctl: open trace: open " + dir + "/none: no such file or directory\n",
		arc + " --format mqsim":  "1 tierctl: " + arc + ": read record 1 of mqsim trace: malformed trace: 4 fields, want 5\n",
	} {
		code, _, stderr := tierctl(t, append([]string{"trace", "info"}, strings.Fields(line)...)...)
		if got := fmt.Sprintf("%d %s", code, stderr); got != want {
			t.Errorf("info %s: got %swant %s", line, got, want)
		}
	}
}
