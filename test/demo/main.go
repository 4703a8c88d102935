package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/units"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	keep := fs.Bool("keep", false, "leave the pool running")
	bin := fs.String("bin", "bin", "`folder` of the programs")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	err := demo(ctx, stdout, *bin, standard(), *keep)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "\ninterrupted; everything is cleaned up")
	default:
		fmt.Fprintf(stderr, "demo: %v\n", err)
	}
	return 1
}

// demo runs a demonstration of shape s and prints it to out.
func demo(ctx context.Context, out io.Writer, bin string, s shape, keep bool) (err error) {
	if _, err := os.Stat(filepath.Join(bin, "tierd")); err != nil {
		return fmt.Errorf("find the programs (make build): %w", err)
	}
	p, err := newPool(ctx, bin, s)
	if p == nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			err = errors.Join(err, p.remove())
		}
	}()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "A pool of three tiers in %s:\n"+
		"  ssd  %8s   0.1 ms, 20000 IOPS\n  fc   %8s    10 ms,   400 IOPS\n  sata %8s    20 ms,   200 IOPS\n",
		p.Dir, s.SSD, s.FC, s.SATA)
	fmt.Fprintf(out, "Extents of %s; every %s a plan; movement of at most %s.\n\n", s.Extent, s.Cycle, s.Rate)
	if err := p.start(ctx); err != nil {
		return err
	}

	begin := time.Now()
	fmt.Fprintf(out, "Filling a volume of %s, more than the two upper tiers hold ...", s.Volume)
	if err := fill(ctx, p); err != nil {
		fmt.Fprintln(out)
		return err
	}
	fmt.Fprintf(out, " %.0f s\n\n", time.Since(begin).Seconds())

	fmt.Fprintf(out, "Load for %s: 4 KiB, 95 %% reads, zipf %.1f, up to %d in flight, wants %.0f requests a second; every read is checked.\n", s.Load, s.Theta, s.Depth, s.IOPS)
	m := &meter{admin: p.admin}
	res, err := putLoad(ctx, p, m, newTable(out, s.Load))
	if err != nil {
		return err
	}
	sum, err := summarise(p.shape, m, res)
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	if sum.check, err = p.tierctl(ctx, "pool", "check", "--config", p.config()); err != nil {
		sum.faults = append(sum.faults, "pool check found damage")
	}
	sum.print(out)
	if keep {
		if err := p.start(ctx); err != nil {
			return err
		}
		kept = true
	}
	p.describe(out, kept)
	return sum.err()
}

// spec is what fill and load have in common: the record of what was written.
func (p *pool) spec() load.Spec {
	s := load.NewSpec(p.uri())
	s.Verify, s.State = true, filepath.Join(p.Dir, "written.state")
	s.Interval = 0
	return s
}

// fill writes the whole volume once, in large pieces.
func fill(ctx context.Context, p *pool) error {
	s := p.spec()
	s.Fill, s.Pattern, s.Depth, s.Ops, s.Duration = true, load.Sequential, 8, 1, 0
	if _, err := load.Run(ctx, s); err != nil {
		return fmt.Errorf("fill volume: %w", err)
	}
	return nil
}

// putLoad runs the load, and measures.
func putLoad(ctx context.Context, p *pool, m *meter, t *table) (*load.Result, error) {
	s := p.spec()
	s.Pattern, s.Theta, s.Grain = load.Zipf, p.Theta, int64(p.Extent)
	s.ReadShare, s.Depth, s.Rate, s.Duration, s.Interval = 0.95, p.Depth, p.IOPS, p.Load, time.Second
	s.OnInterval = func(x load.Sample) {
		m.sample(ctx, x)
		t.show(m)
	}
	if err := m.take(ctx); err != nil {
		return nil, err
	}
	res, err := load.Run(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return res, nil
}

// describe says how to look at the pool.
func (p *pool) describe(out io.Writer, kept bool) {
	attach := fmt.Sprintf("nbd-client -unix %s -N demo -b 4096 -timeout 600 /dev/nbd0", p.socket())
	if !kept {
		fmt.Fprintf(out, "\nA kernel attaches such a volume with\n  %s\n`make demo KEEP=1` leaves it running for that.\n", attach)
		return
	}
	tierctl := filepath.Join(p.bin, "tierctl")
	socket := filepath.Join(p.Dir, "admin.sock")
	fmt.Fprintf(out, `
It runs on. To look at it:
  %s
  %s --socket %s tier list
  %[2]s --socket %[3]s heat demo
  %[2]s --socket %[3]s relocation status
  http://%[4]s/metrics
  %[5]s
To end it:
  kill %[6]d && sleep 2 && rm -r %[7]s
`, attach, tierctl, socket, p.Metrics, p.log(), p.cmd.Process.Pid, p.Dir)
}

func mib(n int64) string { return units.Size(n).Human() }
