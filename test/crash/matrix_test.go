package crash

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/backing/crashstore"
	"tierd/test/crash/recordfs"
)

// matrix is one enumeration.
type matrix struct {
	fs      *recordfs.FS
	seed    uint64
	perCell int           // states wanted in each cell
	perRow  time.Duration // after which a row ends with fewer; 0: no limit

	mu        sync.Mutex
	templates map[*shape]*template
	counts    map[cell]int
	runs      map[string]int
}

// cell is a place in the matrix.
type cell struct{ row, step string }

// template is a pool, stopped cleanly, from which runs start.
type template struct {
	once sync.Once
	err  error
	im   *image
	hist *history
}

func newMatrix(fs *recordfs.FS, seed uint64, perCell int) *matrix {
	return &matrix{
		fs: fs, seed: seed, perCell: perCell,
		templates: make(map[*shape]*template), counts: make(map[cell]int), runs: make(map[string]int),
	}
}

// maxRuns is how often a row is run in the hope of a step that came once and is
// short of states.
const maxRuns = 1000

// enumerate runs a row until every step that it shows has its states, and judges
// all of them.
func (x *matrix) enumerate(row *row) error {
	var until time.Time
	if x.perRow > 0 {
		until = time.Now().Add(x.perRow)
	}
	// Some steps come in few runs: it goes on for a while when there is nothing to do.
	for i, idle := uint64(0), 0; idle < 3 && i < maxRuns && !over(until); i++ {
		if _, err := x.runOnce(row, i, until); err != nil {
			return fmt.Errorf("%s, seed %d, run %d: %w", row.name, x.seed, i, err)
		}
		if idle++; x.short(row) {
			idle = 0
		}
	}
	return nil
}

// short reports whether a step of a row that was seen has too few states.
func (x *matrix) short(row *row) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c, n := range x.counts {
		if c.row == row.name && n < x.perCell {
			return true
		}
	}
	return false
}

// runOnce makes one run of a row, chooses states of it and judges them.
func (x *matrix) runOnce(row *row, i uint64, until time.Time) (judged int, err error) {
	rnd := rand.New(rand.NewPCG(x.seed, i))
	rec, err := x.record(row, rnd)
	if err != nil {
		return 0, err
	}
	for _, c := range x.choose(row, rec, rnd, i) {
		s := &state{at: c.at, how: opCut, made: rec.made, rnd: rnd}
		if c.kill {
			s.how, s.im = opKill, rec.im.kill(c.at)
		} else {
			s.im = rec.im.cut(c.at, c.cut)
		}
		s.hist = rec.hist.after(c.at, s.how)
		if !row.bare {
			s.continuity, s.answered = rec.continuity, rec.hist
		}
		if err := x.judge(row, s); err != nil {
			return judged, fmt.Errorf("%v: %w\nhistory:\n%s", c, err, s.hist)
		}
		judged++
		x.count(cell{row.name, c.step})
		if over(until) {
			break
		}
	}
	return judged, nil
}

func over(until time.Time) bool { return !until.IsZero() && time.Now().After(until) }

func (x *matrix) count(c cell) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[c]++
}

// recording is what one run left behind.
type recording struct {
	im   *image
	hist *history
	from int64 // crash points are after this
	to   int64 // and not after this
	made int64 // when the pool had been made

	continuity uuid.UUID // if the pool was open at first
}

// record makes one run of a row.
func (x *matrix) record(row *row, rnd *rand.Rand) (*recording, error) {
	rec := new(recording)
	im, hist, err := x.startingPoint(row, rnd)
	if err != nil {
		return nil, err
	}
	m, err := start(x.fs, row.shape, im, hist)
	if err != nil {
		return nil, err
	}
	r := &run{machine: m, rnd: rnd}
	if !row.bare {
		if err := m.open(); err != nil {
			return nil, err
		}
		if err := m.settled(); err != nil {
			return nil, err
		}
		rec.continuity = m.pool.Info().Continuity
	}
	rec.from = x.fs.Next()
	row.do(r)
	rec.to = x.fs.Next()
	m.killPool()
	rec.hist = hist
	if row.makes {
		rec.made = rec.to - 1
	}
	rec.im, err = m.media()
	if err == nil {
		err = r.err()
	}
	if err != nil {
		err = fmt.Errorf("%w\nlog of the pool:\n%s", err, m.logs)
	}
	return rec, cmp.Or(err, m.off())
}

// startingPoint returns the media and the history with which a run begins.
func (x *matrix) startingPoint(row *row, rnd *rand.Rand) (*image, *history, error) {
	if row.crashed != nil {
		return x.crashedIn(row, rnd)
	}
	if row.makes {
		return blank(x.fs), newHistory(), nil
	}
	t := x.template(row.shape)
	if t.err != nil {
		return nil, nil, t.err
	}
	return t.im.copy(), t.hist.clone(), nil
}

// crashedIn returns what a crash in the middle of another row has left.
func (x *matrix) crashedIn(row *row, rnd *rand.Rand) (*image, *history, error) {
	var rec *recording
	var points []point
	for tries := 0; len(points) == 0; tries++ {
		if tries == 100 {
			return nil, nil, fmt.Errorf("%d runs of %s have no step %q in their second half", tries, row.crashed.name, row.killedAfter)
		}
		var err error
		if rec, err = x.record(row.crashed, rnd); err != nil {
			return nil, nil, err
		}
		points = rec.im.points(row.shape, rec.from, rec.to)
		if row.makes {
			points = points[:len(points)*4/5] // it is not finished
		} else {
			points = points[len(points)/2:]
		}
		if row.killedAfter != "" {
			points = slices.DeleteFunc(points, func(p point) bool { return p.step != row.killedAfter })
		}
	}
	at := points[rnd.IntN(len(points))].at
	how, im := opKill, rec.im.kill(at)
	if row.killedAfter == "" && rnd.IntN(2) == 0 {
		c := crashstore.Cut{Seed: rnd.Int64(), Keep: []float64{0, 0.5, 1}[rnd.IntN(3)]}
		how, im = opCut, rec.im.cut(at, c)
	}
	hist := rec.hist.after(at, how)
	if row.makes {
		hist = newHistory()
	}
	return im, hist, nil
}

// template makes a pool with something in it, once for each shape.
func (x *matrix) template(sh *shape) *template {
	x.mu.Lock()
	t := x.templates[sh]
	if t == nil {
		t = new(template)
		x.templates[sh] = t
	}
	x.mu.Unlock()
	t.once.Do(func() { t.err = x.makeTemplate(sh, t) })
	return t
}

func (x *matrix) makeTemplate(sh *shape, t *template) error {
	t.im, t.hist = blank(x.fs), newHistory()
	m, err := start(x.fs, sh, t.im, t.hist)
	if err != nil {
		return err
	}
	r := &run{machine: m, rnd: rand.New(rand.NewPCG(x.seed, 0))}
	createPool(r)
	if err := m.open(); err != nil {
		return err
	}
	if err := m.settled(); err != nil {
		return err
	}
	// Slots that were used and given back; extents with gaps; one that was never
	// written.
	r.write(v1, 0, 2*sh.extent, false)
	r.flush(v1)
	r.trim(v1, 0, sh.extent, false)
	for off := int64(0); off+sh.extent < sh.volumes[0]; off += sh.extent {
		r.write(v0, off+4*sector, 3*block, false)
	}
	r.flush(v0)
	r.flush(v1)
	if err := m.settled(); err != nil {
		return err
	}
	if err := m.close(); err != nil {
		return err
	}
	im, err := m.media()
	if err != nil {
		return err
	}
	t.im = im.cut(x.fs.Next(), crashstore.Cut{Keep: 1})
	if err := r.err(); err != nil {
		return err
	}
	return m.off()
}

// choice is a crash that is to be judged.
type choice struct {
	point
	kill bool
	cut  crashstore.Cut
}

func (c choice) String() string {
	if c.kill {
		return fmt.Sprintf("kill at %d, after %s", c.at, c.step)
	}
	return fmt.Sprintf("cut at %d, after %s, keep %v, seed %d", c.at, c.step, c.cut.Keep, c.cut.Seed)
}

// late is the run from which a run may give more than its share of states to a cell,
// and an instant more than there are outcomes: steps that hardly ever come need that.
// The second crash and the recovery before it are different each time.
const late = 20

// perRun is how many states of a cell come from one run, so that a cell sees many
// runs.
func perRun(run uint64) int {
	if run < late {
		return 12
	}
	return 50
}

// choose samples the crashes of a run for those cells that want more.
func (x *matrix) choose(row *row, rec *recording, rnd *rand.Rand, run uint64) []choice {
	byStep := make(map[string][]choice)
	for _, p := range slices.Concat(rec.im.points(row.shape, rec.from, rec.to), rec.hist.promises(rec.from, rec.to)) {
		all := []choice{{point: p, kill: true}, {point: p}}
		if rec.im.unsyncedAt(p.at) > 0 || run >= late {
			all = append(all, choice{point: p, cut: crashstore.Cut{Keep: 1}})
			for range 9 {
				all = append(all, choice{point: p, cut: crashstore.Cut{Seed: rnd.Int64(), Keep: []float64{0.2, 0.5, 0.5, 0.8}[rnd.IntN(4)]}})
			}
		}
		byStep[p.step] = append(byStep[p.step], all...)
	}
	var chosen []choice
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs[row.name]++
	for _, step := range slices.Sorted(maps.Keys(byStep)) {
		all := byStep[step]
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		c := cell{row.name, step}
		n := min(len(all), perRun(run), max(x.perCell-x.counts[c], 0))
		chosen = append(chosen, all[:n]...)
	}
	rnd.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return chosen
}

// sum says in words how many states of a row were judged.
func (x *matrix) sum(row string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	cells, total := 0, 0
	for c, n := range x.counts {
		if c.row == row {
			cells++
			total += n
		}
	}
	return fmt.Sprintf("%d states in %d cells, of %d runs", total, cells, x.runs[row])
}

// report prints the counts of all cells, and returns their total and the cells that
// have fewer states than they should.
func (x *matrix) report(w io.Writer) (total int, short []cell) {
	x.mu.Lock()
	defer x.mu.Unlock()
	cells := slices.SortedFunc(maps.Keys(x.counts), func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.step, b.step))
	})
	last := ""
	for _, c := range cells {
		if c.row != last {
			fmt.Fprintf(w, "%s (%d runs)\n", c.row, x.runs[c.row])
			last = c.row
		}
		fmt.Fprintf(w, "  %-32s %6d\n", c.step, x.counts[c])
		total += x.counts[c]
		if x.counts[c] < x.perCell {
			short = append(short, c)
		}
	}
	fmt.Fprintf(w, "%d states in %d cells\n", total, len(cells))
	return total, short
}
