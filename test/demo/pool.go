package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/control"
	"tierd/pkg/units"
)

// shape is the pool and the load of a demonstration.
type shape struct {
	SSD, FC, SATA units.Size // sizes of the backings
	Volume        units.Size
	Extent        units.Size
	Cycle         time.Duration
	Rate          units.Rate // of movement
	PerCycle      units.Size
	Load          time.Duration
	Edge          time.Duration // the begin and the end that are compared
	Depth         int           // requests in flight, at most
	IOPS          float64       // requests a second that the load wants
	Theta         float64
}

// standard is what `make demo` shows. The tiers' speeds are those of one SSD, of a
// shelf of 10,000 rpm disks and of a shelf of large slow ones.
func standard() shape {
	return shape{
		SSD: 128 * units.MiB, FC: 256 * units.MiB, SATA: units.GiB, Volume: 768 * units.MiB, Extent: 256 * units.KiB,
		Cycle: 2 * time.Second, Rate: units.Rate(8 * units.MiB), PerCycle: 16 * units.MiB,
		Load: time.Minute, Edge: 10 * time.Second, Depth: 16, IOPS: 600, Theta: 1.2,
	}
}

var configText = template.Must(template.New("config").Parse(`metadata: {{.Dir}}/pool.db
extent_size: {{.Extent}}
tiers:
  - name: ssd
    media: ssd
    backings:
      - {path: {{.Dir}}/ssd.img, size: {{.SSD}}, simulate: {latency: 100us, iops: 20000, bandwidth: 800MiB/s}}
  - name: fc
    media: hdd
    backings:
      - {path: {{.Dir}}/fc.img, size: {{.FC}}, simulate: {latency: 10ms, iops: 400, bandwidth: 400MiB/s}}
  - name: sata
    media: hdd
    backings:
      - {path: {{.Dir}}/sata.img, size: {{.SATA}}, simulate: {latency: 20ms, iops: 200, bandwidth: 200MiB/s}}
volumes:
  - {name: demo, size: {{.Volume}}}
nbd: {listen: ["unix:{{.Dir}}/nbd.sock"]}
heat: {short_half_life: 10s, long_half_life: 1m}
relocation:
  cycle: {{.Cycle}}
  budget: {rate: {{.Rate}}, per_cycle: {{.PerCycle}}}
metrics: {listen: "{{.Metrics}}"}
admin: {socket: {{.Dir}}/admin.sock}
`))

// pool is the daemon of the demonstration and its folder.
type pool struct {
	shape
	Dir     string
	Metrics string // host:port
	bin     string // folder of the programs
	cmd     *exec.Cmd
	ended   chan error // what Wait said
	admin   *control.Client
}

func (p *pool) config() string { return filepath.Join(p.Dir, "tierd.yaml") }
func (p *pool) log() string    { return filepath.Join(p.Dir, "tierd.log") }
func (p *pool) socket() string { return filepath.Join(p.Dir, "nbd.sock") }
func (p *pool) uri() string    { return "nbd+unix:///demo?socket=" + p.socket() }

// newPool creates a pool in a new temporary folder.
func newPool(ctx context.Context, bin string, s shape) (*pool, error) {
	dir, err := os.MkdirTemp("", "tierd-demo-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	p := &pool{shape: s, Dir: dir, bin: bin}
	if err := p.create(ctx); err != nil {
		return p, err
	}
	return p, nil
}

func (p *pool) create(ctx context.Context) error {
	var fs unix.Statfs_t
	need := int64(p.Volume) + int64(64*units.MiB)
	if err := unix.Statfs(p.Dir, &fs); err == nil && int64(fs.Bavail)*fs.Bsize < need {
		return fmt.Errorf("%s has no room for %s: choose another folder with TMPDIR", p.Dir, units.Size(need).Human())
	}
	var err error
	if p.Metrics, err = freeAddress(); err != nil {
		return err
	}
	f, err := os.Create(p.config())
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	err = configText.Execute(f, p)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if out, err := p.tierctl(ctx, "pool", "create", "--config", p.config()); err != nil {
		return fmt.Errorf("create pool: %w\n%s", err, out)
	}
	return nil
}

// freeAddress returns a loopback address that nobody listens on just now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// tierctl runs the command line and returns what it printed.
func (p *pool) tierctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(p.bin, "tierctl"), args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// start starts the daemon and returns when it answers.
func (p *pool) start(ctx context.Context) error {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(p.bin, "tierd"), "--config", p.config())
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A session of its own: Ctrl-C is for us, who stop it in our own time, and with
	// --keep it outlives the terminal.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start tierd: %w", err)
	}
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.cmd.Wait() }()

	p.admin = control.Dial(filepath.Join(p.Dir, "admin.sock"))
	deadline := time.After(30 * time.Second)
	for {
		if _, err := p.admin.PoolStatus(ctx); err == nil {
			return nil
		}
		select {
		case err := <-p.ended:
			p.cmd = nil
			return fmt.Errorf("tierd ended: %w\n%s", errors.Join(err, errEnded), p.logTail())
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("tierd does not answer\n%s", p.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var errEnded = errors.New("not expected to")

// logTail returns the last lines of the daemon's log.
func (p *pool) logTail() string {
	f, err := os.Open(p.log())
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, st.Size()-2000), io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}

// stop stops the daemon as an operator would, and kills it if it does not obey.
func (p *pool) stop() error {
	if p.cmd == nil {
		return nil
	}
	if p.admin != nil {
		p.admin.Close()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	defer func() { p.cmd = nil }()
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("tierd stopped: %w\n%s", err, p.logTail())
		}
		return nil
	case <-time.After(90 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("tierd did not stop\n%s", p.logTail())
	}
}

// remove stops the daemon and deletes its folder.
func (p *pool) remove() error {
	return errors.Join(p.stop(), os.RemoveAll(p.Dir))
}
