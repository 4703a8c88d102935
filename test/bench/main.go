package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"tierd/pkg/units"
)

// options are the flags.
type options struct {
	servers, workloads, load, format, dir, bin string
	size, fillBlock                            int64
	rounds                                     int
	seconds                                    float64
	seed                                       int64
	check                                      bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. It returns the exit code: 0 measured, 1 failed or a target
// missed with -check, 2 bad command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.servers, "servers", "tierd,nbdkit,qemu-nbd,go-nbd", "servers to measure, of tierd, tierd3, nbdkit, qemu-nbd and go-nbd")
	fs.StringVar(&o.workloads, "workloads", "", "workloads by `name`; all if empty")
	fs.StringVar(&o.load, "load", "fio", "load generator: fio or tierctl")
	fs.StringVar(&o.format, "o", "text", "output: text, markdown or json")
	fs.StringVar(&o.dir, "dir", os.TempDir(), "folder for the files, on the file system to measure on")
	fs.StringVar(&o.bin, "bin", "bin", "folder of tierd and tierctl")
	size := fs.String("size", "1GiB", "size of each export")
	fill := fs.String("fill-block", "1MiB", "size of the writes that fill the exports")
	fs.IntVar(&o.rounds, "rounds", 7, "rounds of each workload")
	fs.Float64Var(&o.seconds, "seconds", 2, "length of a measurement")
	fs.Int64Var(&o.seed, "seed", 1, "seed of the offsets")
	fs.BoolVar(&o.check, "check", false, "exit code 1 if a target is missed")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	n, err := units.ParseSize(*size)
	m, merr := units.ParseSize(*fill)
	o.size, o.fillBlock = int64(n), int64(m)
	if err = errors.Join(err, merr); err == nil {
		err = o.validate(fs.NArg())
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	r, err := measure(ctx, &o, stderr)
	if err == nil {
		err = r.write(stdout, o.format)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if o.check && len(r.missed()) > 0 {
		return 1
	}
	return 0
}

func (o *options) validate(extra int) error {
	var errs []error
	if extra > 0 {
		errs = append(errs, errors.New("there are no arguments, only flags"))
	}
	if o.size < 64<<20 || o.size%(1<<20) != 0 {
		errs = append(errs, errors.New("-size must be a multiple of 1MiB, at least 64MiB"))
	}
	if o.fillBlock < 4<<10 || o.fillBlock > 16<<20 {
		errs = append(errs, errors.New("-fill-block must be between 4KiB and 16MiB"))
	}
	if o.rounds < 1 || o.seconds <= 0 {
		errs = append(errs, errors.New("-rounds and -seconds must be above 0"))
	}
	if o.load != "fio" && o.load != "tierctl" {
		errs = append(errs, fmt.Errorf("-load must be fio or tierctl (got %q)", o.load))
	}
	if !slices.Contains([]string{"text", "markdown", "json"}, o.format) {
		errs = append(errs, fmt.Errorf("-o must be text, markdown or json (got %q)", o.format))
	}
	for s := range strings.SplitSeq(o.servers, ",") {
		if starters[s] == nil {
			errs = append(errs, fmt.Errorf("no server %q is known", s))
		}
	}
	if _, err := selected(o.workloads); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// selected returns the workloads named in a list, all for an empty one.
func selected(list string) ([]workload, error) {
	if list == "" {
		return workloads, nil
	}
	var out []workload
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(workloads, func(w workload) bool { return w.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no workload %q is known", name)
		}
		out = append(out, workloads[i])
	}
	return out, nil
}

// measure starts the servers, fills their files and runs all rounds.
func measure(ctx context.Context, o *options, progress io.Writer) (r *report, err error) {
	if _, err := exec.LookPath("fio"); err != nil {
		return nil, fmt.Errorf("fio is needed to fill the files: %w", err)
	}
	dir, err := os.MkdirTemp(o.dir, "tierd-bench-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r = &report{
		Machine: describe(dir, o.bin, o.seed), Load: "fio --ioengine=nbd", Size: o.size, FillBlock: o.fillBlock, Rounds: o.rounds, Seconds: o.seconds, LeftOut: []string{},
	}
	var gen generator = fio{size: o.size}
	if o.load == "tierctl" {
		gen, r.Load = tierctl{o.bin}, "tierctl bench"
	}

	servers, err := up(ctx, &site{dir: dir, bin: o.bin, size: o.size}, o, r, progress)
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	chosen, err := selected(o.workloads)
	if err != nil {
		return nil, err
	}
	d := time.Duration(o.seconds * float64(time.Second))
	for _, w := range chosen {
		c := comparison{Workload: w, Samples: make(map[string][]sample)}
		for round := range o.rounds {
			for i := range servers {
				s := servers[(round+i)%len(servers)]
				m, err := one(ctx, gen, s, servers, w, d, o.seed+int64(round))
				if err != nil {
					return nil, fmt.Errorf("%s on %s: %w", w.Name, s.name, err)
				}
				c.Samples[s.name] = append(c.Samples[s.name], m)
			}
		}
		r.Workloads = append(r.Workloads, c)
		fmt.Fprintf(progress, "%s:", w.Name)
		for _, s := range servers {
			fmt.Fprintf(progress, " %s %.0f", s.name, middle(c.Samples[s.name]).IOPS)
		}
		fmt.Fprintln(progress)
	}
	r.Machine.LoadAfter = loadAverage()
	r.compare()
	return r, nil
}

// up starts and fills the servers. Of others than tierd, those that do not come up
// are left out.
func up(ctx context.Context, where *site, o *options, r *report, progress io.Writer) ([]*server, error) {
	var servers []*server
	for name := range strings.SplitSeq(o.servers, ",") {
		fmt.Fprintf(progress, "start and fill %s\n", name)
		s, err := starters[name](ctx, where)
		if err == nil {
			if err = (fio{o.size, o.fillBlock}).fill(ctx, s.uri()); err != nil {
				err = errors.Join(fmt.Errorf("fill %s: %w", name, err), s.stop())
			}
		}
		if err != nil && (strings.HasPrefix(name, ours) || ctx.Err() != nil) {
			return servers, err
		}
		if err != nil {
			r.LeftOut = append(r.LeftOut, name+": "+err.Error())
			continue
		}
		servers = append(servers, s)
		r.Servers = append(r.Servers, name)
	}
	return servers, nil
}

// one makes one measurement of s, after the files of all servers are synced.
func one(ctx context.Context, gen generator, s *server, all []*server, w workload, d time.Duration, seed int64) (sample, error) {
	for _, other := range all {
		if err := other.settle(); err != nil {
			return sample{}, err
		}
	}
	before, err := s.cpu()
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	m, err := gen.run(ctx, s.uri(), w, d, seed)
	if err != nil {
		return sample{}, err
	}
	after, err := s.cpu()
	if err != nil {
		return sample{}, err
	}
	// The generator's own start and end are no time of the load.
	ops := m.IOPS * min(d, time.Since(begin)).Seconds()
	m.CPU = float64((after - before).Microseconds()) / ops
	return m, nil
}
