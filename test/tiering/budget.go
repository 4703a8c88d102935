package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/units"
	"tierd/test/faultfs"
	"tierd/test/fuseproc"
)

// judgeBudget holds what a daemon has moved since its start against the budget of the
// cycle, and its log against its figures. Nothing may be under way.
func (o *options) judgeBudget(ctx context.Context, p *pool, name string, shots []shot, r *report) error {
	if err := p.pause(ctx); err != nil {
		return err
	}
	last, err := p.shot(ctx, nil)
	if err != nil {
		return err
	}
	t, err := p.tally(0)
	if err != nil {
		return err
	}
	r.mark(name+": bytes moved beyond the budget of the cycles", float64(excess(append(shots, last), int64(p.PerCycle))), 0, false)
	r.mark(name+": bytes by which log and figures of movement differ", float64(abs(t.Bytes-last.moved)), 0, false)
	return nil
}

func abs(n int64) int64 { return max(n, -n) }

// budget lets the daemon move, through a kill and a clean restart, after which little is left
// of the day's budget, on files of a file system that counts what is written to them: copies of
// pieces of extents are told from the client's requests by their length.
func budget(ctx context.Context, o *options, r *report) (err error) {
	folder, err := os.MkdirTemp(o.dir, "tierd-disks-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	fs, err := faultfs.Start(folder)
	if errors.Is(err, fuseproc.ErrUnavailable) {
		r.Skipped = append(r.Skipped, fmt.Sprintf("budget: what the backings get cannot be counted: %v", err))
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()

	l := o.layout
	l.SSD, l.FC, l.SATA, l.Extent = 16*units.MiB, 32*units.MiB, 128*units.MiB, 256*units.KiB
	l.Cycle, l.Short, l.Long = time.Second, 5*time.Second, 30*time.Second
	l.Rate, l.PerCycle = units.Rate(4*units.MiB), 3*units.MiB
	size, goal := 80*units.MiB, 20*units.MiB
	if o.quick {
		size, goal = 56*units.MiB, 6*units.MiB
	}
	// Plans take an eighth of the day's budget ahead of its time, and no more.
	l.PerDay = 16 * goal
	l.Volumes = []volume{{"load", size, "auto"}}
	p, err := newPool(ctx, o, "budget", fs.Path("."), l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	if err := p.pause(ctx); err != nil {
		return err
	}
	if err := p.fill(ctx, "load", sequence(size, l.Extent)); err != nil {
		return err
	}
	if err := fs.Set(faultfs.Fault{Op: faultfs.Write, Longer: loadBlock}); err != nil {
		return err
	}
	written := func() (int64, error) {
		n, err := fs.Bytes()
		if err != nil {
			return 0, err
		}
		return n[0], nil
	}
	began := today()
	b := &spent{PerDay: int64(l.PerDay), PerCycle: int64(l.PerCycle)}
	r.Budget = b

	ctxLoad, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	loads := make(chan error, 1)
	put := func() {
		_, _, err := o.put(ctxLoad, p, "load", time.Hour, func(s *load.Spec) { s.Grain = int64(l.Extent); s.BlockSize = loadBlock })
		loads <- err
	}
	go put()
	w := p.watch(ctx, written)
	defer w.stop()
	if err := p.resume(ctx); err != nil {
		return err
	}
	if err := p.awaitWritten(ctx, written, int64(goal)/2); err != nil {
		return err
	}
	shots, err := w.stop()
	if err != nil {
		return err
	}
	o.judgeShots(&l, shots, b)

	// Killed in the middle of moves, which nobody tells of any more.
	p.kill()
	<-loads // ends with its connection
	if b.AtKill, err = written(); err != nil {
		return err
	}
	fromLog := p.endOfLog()
	if err := p.start(ctx); err != nil {
		return err
	}
	// In this order: what is written in between was taken before.
	if b.Refunded, err = written(); err != nil {
		return err
	}
	st, err := p.admin.RelocationStatus(ctx)
	if err != nil {
		return err
	}
	b.Refunded = max(0, b.Refunded+st.BudgetLeftDay-b.PerDay)
	go put()
	w = p.watch(ctx, written)
	defer w.stop()
	// There may be nothing to move before the goal is reached.
	for end := time.Now().Add(time.Minute / 2); time.Now().Before(end); {
		n, err := written()
		if err != nil {
			return err
		}
		if n >= int64(goal) {
			break
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if shots, err = w.stop(); err != nil {
		return err
	}
	o.judgeShots(&l, shots, b)

	// Stopped and started: the day goes on, with a budget that is nearly spent.
	stopLoad()
	<-loads
	if err := p.stop(); err != nil {
		return err
	}
	if b.Total, err = written(); err != nil {
		return err
	}
	told, err := p.tally(fromLog)
	if err != nil {
		return err
	}
	b.Told, b.Counted = told.Bytes, b.Total-b.AtKill
	p.PerDay = units.Size(b.Total) + 2*l.Extent + 256*units.KiB
	b.PerDay = int64(p.PerDay)
	if err := errors.Join(p.writeConfig(), p.start(ctx)); err != nil {
		return err
	}
	ctxLoad, stopLoad = context.WithCancel(ctx)
	defer stopLoad()
	go put()
	if err := sleep(ctx, 4*l.Cycle); err != nil {
		return err
	}
	stopLoad()
	<-loads
	if err := p.pause(ctx); err != nil {
		return err
	}
	if b.Total, err = written(); err != nil {
		return err
	}

	days := int64(1)
	if today() != began {
		days = 2 // the benchmark ran past midnight
	}
	r.mark("budget: bytes by which what moves tell and what was written differ", float64(abs(b.Told-b.Counted)), 0, false)
	r.mark("budget: bytes written beyond the budget of a cycle", float64(b.OverCycle), 0, false)
	if days == 1 {
		r.mark("budget: bytes written today that a kill makes the daemon forget", float64(b.Refunded), 0, false)
	}
	r.mark("budget: bytes written beyond the budget of the day, across a kill and a restart", float64(max(0, b.Total-days*b.PerDay)), 0, false)
	// Bytes are taken before they are written: an extent and its last pieces for each worker.
	slack := float64(l.Rate)/4 + workers*(float64(l.Extent)+2*128*1024)
	r.mark("budget: bytes written ahead of the rate, to what may be", b.Ahead/slack, 1, false)
	return nil
}

const (
	loadBlock = 4096
	// workers is how many moves are under way at the same time, at most.
	workers = 2
)

func today() string { return time.Now().UTC().Format(time.DateOnly) }

// judgeShots adds what a watcher saw.
func (o *options) judgeShots(l *layout, shots []shot, b *spent) {
	over, most := excessWritten(shots, int64(l.PerCycle))
	b.OverCycle, b.MostInCycle = max(b.OverCycle, over), max(b.MostInCycle, most)
	b.Ahead = max(b.Ahead, burst(shots, float64(l.Rate)))
}

// awaitWritten waits until so much is written.
func (p *pool) awaitWritten(ctx context.Context, written func() (int64, error), n int64) error {
	return p.await(ctx, "nothing more moves", func() (bool, error) {
		got, err := written()
		return got >= n, err
	})
}
