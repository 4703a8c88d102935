package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tierd/nbd/client"
	"tierd/pkg/control"
	"tierd/test/slowdrive"
)

const (
	driveSize  = 8 << 30
	volumeSize = 4 << 30
	span       = 512 << 20 // bytes that are written to, of all slow volumes together
	extentSize = 1 << 20
	inFlight   = 32
	block      = 4096
	volumes    = 8 // of the scenario of that name
)

// A writer makes one change of a slow volume; i counts the changes of its client.
type writer func(c *client.Client, rng *rand.Rand, worker, i int) error

func random(c *client.Client, rng *rand.Rand, _, _ int) error {
	return c.WriteAt(payload[:block], rng.Int64N(reach()/block)*block, false)
}

func sequential(c *client.Client, _ *rand.Rand, worker, i int) error {
	const n = 128 << 10
	// Each client goes through a part of its own, from the start again at its end.
	part := reach() / inFlight
	return c.WriteAt(payload[:n], int64(worker)*part+int64(i)*n%part, false)
}

// shares is how many volumes share the span.
var shares int64 = 1

func reach() int64 { return span / shares }

var payload = bytes.Repeat([]byte("tierd"), 1<<20/5)

var scenarios = []struct {
	name  string
	write writer
}{
	{"random", random},
	{"sequential", sequential},
	{"mixed", func(c *client.Client, rng *rand.Rand, worker, i int) error {
		if worker%2 == 0 {
			return random(c, rng, worker, i)
		}
		return sequential(c, rng, worker, i)
	}},
	{"overwrite", func(c *client.Client, rng *rand.Rand, _, _ int) error {
		return c.WriteAt(payload[:block], rng.Int64N(64)*16*block, false)
	}},
	{"trims", func(c *client.Client, rng *rand.Rand, worker, i int) error {
		if i%4 == 0 {
			return c.Trim(rng.Int64N(reach()/extentSize)*extentSize, extentSize, false)
		}
		return random(c, rng, worker, i)
	}},
	{"moves", random},
	{"volumes", random},
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// A rig is a daemon on two tiers.
type rig struct {
	o    *options
	dir  string
	cmd  *exec.Cmd
	sock string
	// cachedFast keeps the fast tier in the page cache, whatever the slow one does.
	cachedFast bool
}

func measure(ctx context.Context, o *options, name string, direct bool) (r result, err error) {
	dir, err := os.MkdirTemp(o.dir, "flush")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	drives := filepath.Join(dir, "drive")
	if err := os.Mkdir(drives, 0o700); err != nil {
		return r, err
	}
	drive, err := slowdrive.Start(drives, slowdrive.Options{Size: driveSize, IOPS: o.iops, Bandwidth: o.bandwidth, MaxDirty: 64 << 20})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, drive.Close()) }()
	g := &rig{o: o, dir: dir, sock: filepath.Join(dir, "nbd.sock")}
	if err := g.start(ctx, drive.Path, name, direct); err != nil {
		return r, errors.Join(err, g.stop())
	}
	r, err = g.run(ctx, name)
	r.direct = direct
	return r, errors.Join(err, g.stop())
}

func (g *rig) start(ctx context.Context, drive, name string, direct bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "metadata: %s/pool.db\nextent_size: %d\ntiers:\n", g.dir, extentSize)
	fmt.Fprintf(&b, "  - {name: ssd, media: ssd, direct_io: %v, backings: [{path: %s/ssd.img, size: 6GiB}]}\n", direct && !g.cachedFast, g.dir)
	fmt.Fprintf(&b, "  - {name: hdd, media: hdd, direct_io: %v, backings: [{path: %s}]}\n", direct, drive)
	fmt.Fprintf(&b, "volumes:\n  - {name: fast, size: %d, policy: highest}\n  - {name: mover, size: %d, policy: highest}\n", volumeSize, volumeSize)
	for i := range volumes {
		fmt.Fprintf(&b, "  - {name: slow%d, size: %d, policy: lowest}\n", i, volumeSize)
	}
	fmt.Fprintf(&b, "nbd: {listen: [\"unix:%s\"]}\nmetrics: {listen: \"127.0.0.1:0\"}\nadmin: {socket: %s/admin.sock}\n", g.sock, g.dir)
	fmt.Fprintf(&b, "relocation: {cycle: 24h, budget: {rate: 100MiB/s, per_cycle: 100GiB, per_day: 1000GiB}}\n")
	config := filepath.Join(g.dir, "tierd.yaml")
	if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
		return err
	}
	if err := g.tierctl(ctx, "pool", "create", "--config", config); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(g.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	g.cmd = exec.Command(filepath.Join(g.o.bin, "tierd"), "--config", config)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		g.cmd = nil
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if c, err := client.Dial(ctx, g.uri("fast")); err == nil {
			return c.Close()
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the daemon does not answer: %s", text)
		}
	}
}

func (g *rig) uri(volume string) string { return "nbd+unix:///" + volume + "?socket=" + g.sock }

func (g *rig) tierctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(g.o.bin, "tierctl"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tierctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (g *rig) admin(ctx context.Context, args ...string) error {
	return g.tierctl(ctx, append([]string{"--socket", filepath.Join(g.dir, "admin.sock")}, args...)...)
}

func (g *rig) stop() error {
	if g.cmd == nil {
		return nil
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(2*time.Minute, func() { _ = g.cmd.Process.Kill() })
	defer kill.Stop()
	return g.cmd.Wait()
}

// run runs a scenario.
func (g *rig) run(ctx context.Context, name string) (result, error) {
	r := result{name: name}
	var write writer
	for _, s := range scenarios {
		if s.name == name {
			write = s.write
		}
	}
	busy := 1
	if name == "volumes" {
		busy = volumes
	}
	shares = int64(busy)
	// A first write takes a slot elsewhere if the slow drive has no clean one.
	if err := g.awaitClean(ctx, span/extentSize+extentSize>>12); err != nil {
		return r, err
	}
	if name == "moves" {
		if err := g.fillMover(ctx); err != nil {
			return r, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var writes atomic.Int64
	do := func(volume string, fn func(c *client.Client) error) {
		wg.Go(func() {
			c, err := client.Dial(ctx, g.uri(volume))
			if err == nil {
				err = errors.Join(fn(c), c.Close())
			}
			if err != nil {
				cancel(fmt.Errorf("volume %s: %w", volume, err))
			}
		})
	}
	start := time.Now()
	end := start.Add(time.Duration(g.o.seconds * 1e9))
	running := func() bool { return time.Now().Before(end) && ctx.Err() == nil }
	flush := func(c *client.Client, to *latencies) error {
		t := time.Now()
		err := c.Flush()
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, time.Since(t))
		return err
	}
	for v := range busy {
		volume := fmt.Sprintf("slow%d", v)
		for w := range inFlight / busy {
			do(volume, func(c *client.Client) error {
				rng := rand.New(rand.NewPCG(uint64(v), uint64(w)))
				for i := 0; running(); i++ {
					if err := write(c, rng, w, i); err != nil {
						return err
					}
					writes.Add(1)
				}
				return nil
			})
		}
		do(volume, func(c *client.Client) error {
			for running() {
				time.Sleep(time.Second / 2)
				if err := flush(c, &r.slow); err != nil {
					return err
				}
			}
			return nil
		})
	}
	do("fast", func(c *client.Client) error {
		for i := int64(0); running(); i++ {
			off := i % 16 * block
			if i%4 == 0 {
				off = (16 + i) % (volumeSize / extentSize) * extentSize
			}
			if err := c.WriteAt(payload[:block], off, false); err != nil {
				return err
			}
			if err := flush(c, &r.fast); err != nil {
				return err
			}
			time.Sleep(time.Second / 20)
		}
		return nil
	})
	if name == "moves" {
		wg.Go(func() {
			if err := g.admin(ctx, "relocation", "run"); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	r.took, r.writes = time.Since(start), writes.Load()
	slices.Sort(r.slow)
	slices.Sort(r.fast)
	return r, context.Cause(ctx)
}

// awaitClean waits until each tier has n clean slots.
func (g *rig) awaitClean(ctx context.Context, n int64) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.CommandContext(ctx, filepath.Join(g.o.bin, "tierctl"), "--socket", filepath.Join(g.dir, "admin.sock"), "backing", "list", "-o", "json").Output()
		if err != nil {
			return fmt.Errorf("list backings: %w", err)
		}
		var list []control.Backing
		if err := json.Unmarshal(out, &list); err != nil {
			return fmt.Errorf("list backings: %w", err)
		}
		if !slices.ContainsFunc(list, func(b control.Backing) bool { return b.CleanSlots < n }) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the backings do not get %d clean slots: %s", n, out)
		}
	}
}

// fillMover gives the volume mover extents on the fast tier, which its policy then
// wants on the slow one.
func (g *rig) fillMover(ctx context.Context) error {
	c, err := client.Dial(ctx, g.uri("mover"))
	if err != nil {
		return err
	}
	for off := int64(0); off < 1<<30; off += extentSize {
		if err := c.WriteAt(payload[:block], off, false); err != nil {
			return err
		}
	}
	if err := errors.Join(c.Flush(), c.Close()); err != nil {
		return err
	}
	return g.admin(ctx, "volume", "set", "mover", "--policy", "lowest")
}
