package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"tierd/nbd/client"
	"tierd/pkg/control"
	"tierd/pkg/units"
)

// A volume of a pool.
type volume struct {
	Name   string
	Size   units.Size
	Policy string
}

// A layout is what a pool is made of.
type layout struct {
	SSD, FC, SATA units.Size
	Extent        units.Size
	Cycle         time.Duration
	Short, Long   time.Duration // half-lives of heat
	Rate          units.Rate
	PerCycle      units.Size
	PerDay        units.Size // 0: no limit
	Volumes       []volume
}

// The speeds are those of one SSD, of a shelf of 10,000 rpm disks and of a shelf of
// large slow ones, as in test/demo.
var configText = template.Must(template.New("config").Parse(`metadata: {{.Dir}}/pool.db
extent_size: {{.Extent}}
tiers:
  - name: ssd
    media: ssd
    backings:
      - {path: {{.Disks}}/ssd.img, size: {{.SSD}}, simulate: {latency: 100us, iops: 20000, bandwidth: 800MiB/s}}
  - name: fc
    media: hdd
    backings:
      - {path: {{.Disks}}/fc.img, size: {{.FC}}, simulate: {latency: 10ms, iops: 400, bandwidth: 400MiB/s}}
  - name: sata
    media: hdd
    backings:
      - {path: {{.Disks}}/sata.img, size: {{.SATA}}, simulate: {latency: 20ms, iops: 200, bandwidth: 200MiB/s}}
volumes:
{{- range .Volumes}}
  - {name: {{.Name}}, size: {{.Size}}, policy: {{.Policy}}}
{{- end}}
nbd: {listen: ["unix:{{.Dir}}/nbd.sock"]}
heat: {short_half_life: {{.Short}}, long_half_life: {{.Long}}}
relocation:
  cycle: {{.Cycle}}
  budget: {rate: {{.Rate}}, per_cycle: {{.PerCycle}}{{if .PerDay}}, per_day: {{.PerDay}}{{end}}}
metrics: {listen: "127.0.0.1:0"}
admin: {socket: {{.Dir}}/admin.sock}
log: {level: debug}
`))

// A pool is a daemon and its folder.
type pool struct {
	layout
	Dir   string
	Disks string // folder of the backings
	bin   string // of the programs
	cmd   *exec.Cmd
	ended chan error // what Wait said
	admin *control.Client
}

// newPool creates a pool below folder and starts its daemon. disks is where its
// backings lie; "": with all else.
func newPool(ctx context.Context, o *options, name, disks string, l layout) (*pool, error) {
	dir, err := os.MkdirTemp(o.dir, "tierd-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	p := &pool{layout: l, Dir: dir, Disks: disks, bin: o.bin}
	if disks == "" {
		p.Disks = dir
	}
	err = p.writeConfig()
	if err == nil {
		err = p.tierctl(ctx, "pool", "create", "--config", p.config())
	}
	if err == nil {
		err = p.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pool %s: %w", name, err), p.remove())
	}
	return p, nil
}

func (p *pool) config() string { return filepath.Join(p.Dir, "tierd.yaml") }
func (p *pool) log() string    { return filepath.Join(p.Dir, "tierd.log") }
func (p *pool) uri(volume string) string {
	return "nbd+unix:///" + volume + "?socket=" + p.Dir + "/nbd.sock"
}

func (p *pool) writeConfig() error {
	var b bytes.Buffer
	if err := configText.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(p.config(), b.Bytes(), 0o600)
}

func (p *pool) tierctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(p.bin, "tierctl"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tierctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
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
	// Ctrl-C is for the benchmark, which stops it in its own time.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("start tierd: %w", err)
	}
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.cmd.Wait() }()
	p.admin = control.Dial(filepath.Join(p.Dir, "admin.sock"))
	deadline := time.After(time.Minute)
	for {
		_, err := p.admin.PoolStatus(ctx)
		if err == nil {
			var c *client.Client
			if c, err = client.Dial(ctx, p.uri(p.Volumes[0].Name)); err == nil {
				return c.Close()
			}
		}
		select {
		case err := <-p.ended:
			p.cmd = nil
			return fmt.Errorf("tierd ended: %w\n%s", err, p.logTail())
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("tierd does not answer: %w\n%s", err, p.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// logTail returns the last lines of the daemon's log.
func (p *pool) logTail() string {
	b, _ := os.ReadFile(p.log())
	return string(b[max(0, len(b)-2000):])
}

// stop stops the daemon as an operator would, and kills it if it does not obey.
func (p *pool) stop() error {
	if p.cmd == nil {
		return nil
	}
	p.admin.Close()
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

// kill ends the daemon where it is.
func (p *pool) kill() {
	p.admin.Close()
	_ = p.cmd.Process.Kill()
	<-p.ended
	p.cmd = nil
}

// remove stops the daemon and deletes the folder.
func (p *pool) remove() error { return errors.Join(p.stop(), os.RemoveAll(p.Dir)) }

// pause pauses movement and waits until nothing moves any more: what has not begun to
// copy may wait for its budget until the end of the pause.
func (p *pool) pause(ctx context.Context) error {
	if _, err := p.admin.RelocationPause(ctx, control.RelocationPauseRequest{}); err != nil {
		return err
	}
	var last control.RelocationStatus
	since := time.Now()
	return p.await(ctx, "movement does not end", func() (bool, error) {
		st, err := p.admin.RelocationStatus(ctx)
		if movedBytes(st.Moved) != movedBytes(last.Moved) || st.InFlight != last.InFlight {
			last, since = st, time.Now()
		}
		return st.InFlight == 0 || time.Since(since) > time.Second, err
	})
}

// resume lets movement go on.
func (p *pool) resume(ctx context.Context) error {
	_, err := p.admin.RelocationResume(ctx, control.RelocationPauseRequest{})
	return err
}

// await waits until fn is true.
func (p *pool) await(ctx context.Context, what string, fn func() (bool, error)) error {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		ok, err := fn()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s\n%s", what, p.logTail())
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fill writes extents of a volume whole, in the order of their offsets.
func (p *pool) fill(ctx context.Context, volume string, offsets []int64) error {
	// A first write takes a slot elsewhere if a slow tier has no clean one.
	err := p.await(ctx, "the backings do not become clean", func() (bool, error) {
		list, err := p.admin.Backings(ctx)
		for _, b := range list {
			if b.CleanSlots < min(b.FreeSlots, 16) {
				return false, err
			}
		}
		return true, err
	})
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, p.uri(volume))
	if err != nil {
		return err
	}
	// No two extents alike, and none that can be taken for zeroes.
	content := func(i int, n int64) []byte {
		return bytes.Repeat(fmt.Appendf(nil, "extent %8d of a volume", i), int(n/16+1))[:n]
	}
	// The first writes alone have to come in order.
	for i, off := range offsets {
		if err := c.WriteAt(content(i, loadBlock), off, false); err != nil {
			return errors.Join(fmt.Errorf("fill %s: %w", volume, err), c.Close())
		}
	}
	const workers = 16
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(offsets) && errs[w] == nil; i += workers {
				errs[w] = c.WriteAt(content(i, int64(p.Extent)), offsets[i], false)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return errors.Join(fmt.Errorf("fill %s: %w", volume, err), c.Close())
	}
	return errors.Join(c.Flush(), c.Close())
}

// placement returns the rank of the tier of each extent of a volume.
func (p *pool) placement(ctx context.Context, volume string) ([]byte, error) {
	m, err := p.admin.Heat(ctx, control.HeatRequest{Volume: volume, Limit: 1})
	if err == nil && m.ExtentsPerCell != 1 {
		err = fmt.Errorf("the heat map of %s is not told extent by extent", volume)
	}
	return m.Tier, err
}
