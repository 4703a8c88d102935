package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tierd/nbd/client"
	"tierd/test/awake"
	"tierd/test/slowdrive"
)

const (
	// isolationMark is how much slower the 99th percentile of hits may be beside slow
	// requests, in the median of the rounds.
	isolationMark = 1.3
	isolationPace = 16 // slow requests that are outstanding
	fastPart      = 32 << 20
	slowFrom      = 1 << 30
	slowPart      = 256 << 20
)

// isolations are what is slow beside the hits.
var isolations = []struct {
	name   string
	write  bool
	direct bool // of the slow tier; else its dirty pages are throttled
}{
	{"reads", false, true},
	{"writes", true, true},
	{"throttled", true, false},
}

// isolation measures, on one connection, hits in the fast tier with and without requests
// that are stuck in the slow one, in turns, and reports whether all marks are met.
func isolation(ctx context.Context, o *options, stdout, stderr io.Writer) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(stdout, "SKIPPED: hits beside slow requests: the slow drive is a loop device, which only root can make")
		return 0
	}
	if o.awake {
		sleep, err := awake.Keep(ctx)
		if err != nil {
			fmt.Fprintf(stderr, "flush: %v\n", err)
			return 1
		}
		defer sleep()
	}
	code := 0
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(stdout, "hits on a connection with %d slow requests; %d rounds; mark: ratio of p99 at most %.1f; load average %s\n",
		isolationPace, o.rounds, isolationMark, strings.TrimSpace(string(load)))
	fmt.Fprintln(stdout, "slow        depth  p50 alone  p50 beside  p99 alone  p99 beside  ratio of p99: median (range)  slow/s  mark")
	for _, s := range isolations {
		if err := o.isolate(ctx, s.name, s.write, s.direct, stdout, &code); err != nil {
			fmt.Fprintf(stderr, "flush: isolation from %s: %v\n", s.name, err)
			return 1
		}
	}
	return code
}

func (o *options) isolate(ctx context.Context, name string, write, direct bool, stdout io.Writer, code *int) (err error) {
	dir, err := os.MkdirTemp(o.dir, "isolation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	drives := filepath.Join(dir, "drive")
	if err := os.Mkdir(drives, 0o700); err != nil {
		return err
	}
	drive, err := slowdrive.Start(drives, slowdrive.Options{Size: driveSize, IOPS: o.iops, Bandwidth: o.bandwidth, MaxDirty: 16 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drive.Close()) }()
	g := &rig{o: o, dir: dir, sock: filepath.Join(dir, "nbd.sock"), cachedFast: true}
	if err := g.start(ctx, drive.Path, "isolation", direct); err != nil {
		return errors.Join(err, g.stop())
	}
	defer func() { err = errors.Join(err, g.stop()) }()
	c, err := client.Dial(ctx, g.uri("mover"))
	if err != nil {
		return err
	}
	defer c.Close()
	// One volume with a part in each tier.
	for off := int64(0); off < fastPart; off += 512 << 10 {
		if err := c.WriteAt(payload[:512<<10], off, false); err != nil {
			return err
		}
	}
	if err := g.admin(ctx, "volume", "set", "mover", "--policy", "lowest"); err != nil {
		return err
	}
	// A first write takes a slot elsewhere if the slow drive has no clean one.
	if err := g.awaitClean(ctx, slowPart/extentSize+16); err != nil {
		return err
	}
	for off := int64(slowFrom); off < slowFrom+slowPart; off += extentSize {
		if err := c.WriteAt(payload[:block], off, false); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return err
	}

	for _, depth := range []int{1, 16} {
		var alone, beside [][2]time.Duration
		var slow int64
		var took time.Duration
		for round := range o.rounds {
			for half := range 2 {
				// What the one half leaves behind must not always be paid by the other.
				if half == round%2 {
					if err := settle(ctx, c); err != nil {
						return err
					}
					q, err := hits(ctx, c, depth, o.seconds)
					if err != nil {
						return err
					}
					alone = append(alone, q)
					continue
				}
				count, stop := besideThem(ctx, c, write)
				time.Sleep(200 * time.Millisecond)
				begin, before := time.Now(), count.Load()
				q, err := hits(ctx, c, depth, o.seconds)
				took += time.Since(begin)
				slow += count.Load() - before
				if err = errors.Join(err, stop()); err != nil {
					return err
				}
				beside = append(beside, q)
			}
		}
		var ratios []float64
		for i := range alone {
			ratios = append(ratios, float64(beside[i][1])/float64(alone[i][1]))
		}
		slices.Sort(ratios)
		median := ratios[len(ratios)/2]
		// The mark is for one hit at a time. With a deep queue the processors are the limit,
		// and each hit waits for those before it, which is told and has no mark.
		verdict := "met"
		switch {
		case depth > 1:
			verdict = "-"
		case median > isolationMark:
			verdict, *code = "MISSED", 1
		}
		mid := func(list [][2]time.Duration, q int) time.Duration {
			var all []time.Duration
			for _, v := range list {
				all = append(all, v[q])
			}
			slices.Sort(all)
			return all[len(all)/2].Round(100 * time.Nanosecond)
		}
		fmt.Fprintf(stdout, "%-10s  %5d  %9s  %10s  %9s  %10s  %6.2f (%.2f to %.2f)  %22.0f  %s\n", name, depth, mid(alone, 0), mid(beside, 0), mid(alone, 1), mid(beside, 1),
			median, ratios[0], ratios[len(ratios)-1], float64(slow)/took.Seconds(), verdict)
	}
	for _, line := range g.waits() {
		fmt.Fprintln(stdout, "            ", line)
	}
	return nil
}

// settle waits until the slow drive has nothing left to write.
func settle(ctx context.Context, c *client.Client) error {
	if err := c.Flush(); err != nil {
		return err
	}
	select {
	case <-time.After(300 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// besideThem keeps isolationPace requests to the slow part outstanding until stop is
// called, and counts those that are answered.
func besideThem(ctx context.Context, c *client.Client, write bool) (count *atomic.Int64, stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	count = new(atomic.Int64)
	errs := make([]error, isolationPace)
	for i := range isolationPace {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
			p := make([]byte, block)
			for ctx.Err() == nil {
				off := slowFrom + rng.Int64N(slowPart/extentSize)*extentSize + rng.Int64N(extentSize/block)*block
				if write {
					errs[i] = c.WriteAt(payload[:block], off, false)
				} else {
					errs[i] = c.ReadAt(p, off)
				}
				if errs[i] != nil {
					return
				}
				count.Add(1)
			}
		})
	}
	return count, func() error {
		cancel()
		wg.Wait()
		return errors.Join(errs...)
	}
}

// hits reads at random in the fast part, depth at a time, and returns the median and the
// 99th percentile of the times.
func hits(ctx context.Context, c *client.Client, depth int, seconds float64) (q [2]time.Duration, err error) {
	var mu sync.Mutex
	var all latencies
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var wg sync.WaitGroup
	for i := range depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			p := make([]byte, block)
			var mine latencies
			for ctx.Err() == nil {
				begin := time.Now()
				if begin.After(end) {
					break
				}
				if rerr := c.ReadAt(p, rng.Int64N(fastPart/block)*block); rerr != nil {
					mu.Lock()
					err = rerr
					mu.Unlock()
					return
				}
				mine = append(mine, time.Since(begin))
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if err != nil || len(all) == 0 {
		return q, errors.Join(err, ctx.Err())
	}
	slices.Sort(all)
	return [2]time.Duration{all.quantile(0.5), all.quantile(0.99)}, nil
}

// waits are the causes for which requests of clients were held up.
func (g *rig) waits() (lines []string) {
	log, _ := os.ReadFile(filepath.Join(g.dir, "log"))
	m := regexp.MustCompile(`metrics=(\S+)`).FindSubmatch(log)
	if m == nil {
		return nil
	}
	resp, err := http.Get("http://" + string(m[1]) + "/metrics")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "tierd_foreground_wait_seconds_sum") || strings.HasPrefix(line, "tierd_nbd_handoffs_total") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
