package crash

import (
	"time"

	"tierd/tiering"
)

// row is an operation whose crash points are enumerated.
type row struct {
	name  string
	shape *shape
	do    func(*run)
	// By default a run starts with the pool of its shape open. With bare the pool is
	// down; with makes there is none; with crashed it was in the middle of that row, and
	// with killedAfter the process was killed there after that step.
	bare, makes bool
	crashed     *row
	killedAfter string
}

// names of the volumes of every shape.
const (
	v0 = "v0"
	v1 = "v1"
)

var (
	mixedRow  = row{name: "mixed", shape: small, do: mixed}
	createRow = row{name: "pool create", shape: small, do: createPool, bare: true, makes: true}
)

var rows = []row{
	{name: "provision", shape: small, do: provision},
	{name: "overwrite", shape: small, do: overwrite},
	{name: "trim", shape: small, do: trim},
	{name: "zero", shape: small, do: zero},
	{name: "promote", shape: large, do: func(r *run) { relocate(r, 2, 1, 0) }},
	{name: "demote", shape: large, do: func(r *run) { relocate(r, 0, 1, 2) }},
	{name: "volume create", shape: small, do: createVolume},
	{name: "volume grow", shape: small, do: growVolume},
	{name: "volume delete", shape: small, do: deleteVolume},
	{name: "backing drain", shape: small, do: drainBacking},
	{name: "backing add", shape: small, do: addBacking},
	{name: "backing remove", shape: small, do: removeBacking},
	createRow,
	{name: "pool create, again", shape: small, do: createPool, bare: true, makes: true, crashed: &createRow},
	{name: "stop and start", shape: small, do: stopAndStart},
	{name: "recovery", shape: small, do: recovery, bare: true, crashed: &mixedRow},
	{name: "recovery in a commit", shape: small, do: recovery, bare: true, crashed: &mixedRow, killedAfter: "metadata root write"},
	mixedRow,
}

// provision writes where nothing is mapped.
func provision(r *run) {
	r.beside(func(r *run) {
		for range 8 {
			off, n := r.span(v0)
			r.write(v0, off, n, r.oneIn(4))
			if r.oneIn(4) {
				r.flush(v0)
			}
			if r.oneIn(6) { // room for more
				off, n := r.extents(v0)
				r.trim(v0, off, n, false)
			}
		}
		r.flush(v0)
	}, func(r *run) {
		for range 4 {
			// Whole extents, some of them at once.
			off, n := r.extents(v1)
			r.write(v1, off, n, r.oneIn(4))
			if r.oneIn(3) {
				r.flush(v1)
			}
		}
	}, flusher(v0))
}

// flusher flushes a volume while others change it, at moments of its own.
func flusher(name string) func(*run) {
	return func(r *run) {
		for range 6 {
			time.Sleep(time.Duration(r.rnd.IntN(1000)) * time.Microsecond)
			r.flush(name)
		}
	}
}

// overwrite writes where everything is mapped and committed.
func overwrite(r *run) {
	for _, name := range []string{v0, v1} {
		for off := int64(0); off < r.size(name); off += r.shape.extent {
			if r.oneIn(2) {
				r.write(name, off, block, false)
			}
		}
		r.flush(name)
	}
	writer := func(name string) func(*run) {
		return func(r *run) {
			for range 12 {
				off, n := r.span(name)
				write := func(r *run) { r.write(name, off, n, r.oneIn(4)) }
				if r.oneIn(2) {
					write(r)
				} else {
					r.beside(write, func(r *run) { r.flush(name) })
				}
				if r.oneIn(3) {
					r.flush(name)
				}
			}
		}
	}
	r.beside(writer(v0), writer(v1), flusher(v0))
}

// trim gives slots back and has them used again, by this volume and by the other.
func trim(r *run) {
	trimmer := func(name string) func(*run) {
		return func(r *run) {
			for range 5 {
				off, n := r.extents(name)
				r.trim(name, off, n, r.oneIn(4))
				if r.oneIn(3) {
					r.flush(name)
				}
				off, n = r.span(name)
				r.write(name, off, n, r.oneIn(5))
				if r.oneIn(4) {
					r.flush(name)
				}
			}
		}
	}
	r.beside(trimmer(v0), trimmer(v1), flusher(v1))
}

// zero zeroes parts and wholes of extents, with and without giving back their slots.
func zero(r *run) {
	for range 8 {
		if r.oneIn(2) {
			off, n := r.extents(v0)
			r.zero(v0, off, n, r.oneIn(2), r.oneIn(4))
		} else {
			off, n := r.span(v0)
			r.zero(v0, off, n, r.oneIn(2), r.oneIn(4))
		}
		if r.oneIn(3) {
			off, n := r.span(v0)
			r.write(v0, off, n, r.oneIn(4))
		}
		if r.oneIn(3) {
			r.flush(v0)
		}
	}
}

// relocate moves extents of both volumes along tiers while they are written to: most
// of the writes go to the extent that moves.
func relocate(r *run, tiers ...int) {
	user := func(name string) func(*run) {
		return func(r *run) {
			for _, t := range tiers {
				off, n := r.extents(name)
				n = min(n, r.shape.extent)
				if r.oneIn(2) {
					r.flush(name)
				}
				r.beside(func(r *run) { r.move(name, off, t) }, func(r *run) {
					for range 5 {
						r.write(name, off+r.rnd.Int64N(n/block)*block, block, r.oneIn(2))
					}
				})
				for range 2 {
					off, n := r.span(name)
					r.write(name, off, n, r.oneIn(4))
				}
				if r.oneIn(8) {
					off, n := r.extents(name)
					r.trim(name, off, n, false)
				}
			}
		}
	}
	r.beside(user(v0), user(v1), flusher(v0), flusher(v1))
}

func createVolume(r *run) {
	r.beside(func(r *run) {
		for _, name := range []string{"w0", "w1"} {
			r.create(name, 2*r.shape.extent)
			r.write(name, 0, 2*block, false)
			if r.oneIn(2) {
				r.flush(name)
			}
		}
	}, func(r *run) {
		for range 3 {
			off, n := r.span(v0)
			r.write(v0, off, n, r.oneIn(3))
		}
	})
}

func growVolume(r *run) {
	for range 3 {
		old := r.size(v0)
		size := old + block*(1+r.rnd.Int64N(20))
		r.grow(v0, size)
		r.write(v0, old-block, 2*block, r.oneIn(3))
		if r.oneIn(2) {
			r.flush(v0)
		}
	}
}

// deleteVolume deletes volumes and gives their slots to the one that stays.
func deleteVolume(r *run) {
	r.create("w0", 2*r.shape.extent)
	r.write("w0", 0, r.shape.extent+block, r.oneIn(2))
	r.beside(func(r *run) {
		for _, name := range []string{v1, "w0"} {
			r.delete(name)
		}
	}, func(r *run) {
		for range 6 {
			off, n := r.span(v0)
			r.write(v0, off, n, r.oneIn(4))
			if r.oneIn(3) {
				r.flush(v0)
			}
		}
	})
}

// writing makes writes to a volume.
func writing(name string) func(*run) {
	return func(r *run) {
		for range 8 {
			off, n := r.span(name)
			r.write(name, off, n, r.oneIn(4))
			if r.oneIn(4) {
				r.flush(name)
			}
		}
	}
}

// drainBacking empties backings while both volumes are written to, with a pause or a
// change of mind on the way.
func drainBacking(r *run) {
	r.beside(writing(v0), writing(v1), func(r *run) {
		for _, at := range []string{path(0, 0), path(1, r.rnd.IntN(2))} {
			r.drain(at, tiering.DrainStart)
			switch r.rnd.IntN(3) {
			case 0:
				r.drain(at, tiering.DrainPause)
				r.drain(at, tiering.DrainResume)
			case 1:
				r.drain(at, tiering.DrainCancel)
				continue
			}
			r.drained(at)
		}
	})
}

// addBacking adds backings, to a tier and as a tier, while the volumes are written to
// and come to use them.
func addBacking(r *run) {
	r.beside(writing(v0), writing(v1), func(r *run) {
		for i, at := range []string{spare(0), spare(1)} {
			o := tiering.AddOptions{Tier: "t1", Backing: tiering.BackingSpec{Path: at, Size: r.shape.layouts[at].Size}}
			if i == 1 {
				o.Tier, o.Before = "t9", []string{"t0", "t2"}[r.rnd.IntN(2)]
			}
			r.add(o)
			writing(v1)(r)
		}
	})
	for range 3 {
		off, n := r.extents(v1)
		r.write(v1, off, n, r.oneIn(2))
	}
}

// removeBacking empties a backing, takes it out of the pool, and may add it again.
func removeBacking(r *run) {
	at := path(1, r.rnd.IntN(2))
	r.beside(writing(v0), writing(v1), func(r *run) {
		r.drain(at, tiering.DrainStart)
		if !r.drained(at) {
			return
		}
		r.note(at, op{kind: opDelete}, func() error {
			_, err := r.pool.RemoveBacking(ctx, at, false)
			return err
		})
		if r.oneIn(2) {
			r.add(tiering.AddOptions{Tier: "t2", Backing: tiering.BackingSpec{Path: at}})
		}
	})
}

// createPool makes the pool on blank disks.
func createPool(r *run) {
	begin := r.fs.Next()
	err := r.shape.create(r.machine)
	if err != nil {
		r.failed("pool create: %v", err)
	}
	end := r.fs.Next()
	for i, n := range r.shape.volumes {
		r.hist.add([]string{v0, v1}[i], op{kind: opCreate, begin: begin, end: end, n: n})
	}
	for _, t := range r.shape.tiers() {
		for _, b := range t.Backings {
			r.hist.add(b.Path, op{kind: opCreate, begin: begin, end: end})
		}
	}
}

// stopAndStart stops the pool cleanly, with data unflushed, and opens it again.
func stopAndStart(r *run) {
	off, n := r.span(v0)
	r.write(v0, off, n, false)
	for range 2 {
		// A clean stop flushes.
		flush := op{kind: opFlush, begin: r.fs.Next()}
		if err := r.close(); err != nil {
			r.failed("%v", err)
			return
		}
		flush.end = r.fs.Next()
		r.hist.add(v0, flush)
		r.hist.add(v1, flush)
		if err := r.open(); err != nil {
			r.failed("%v", err)
			return
		}
		off, n := r.span(v0)
		r.write(v0, off, n, r.oneIn(2))
	}
}

// recovery opens the pool after a crash, and has it used while that goes on.
func recovery(r *run) {
	if err := r.open(); err != nil {
		r.failed("%v", err)
		return
	}
	user := func(name string) func(*run) {
		return func(r *run) {
			for range 4 {
				off, n := r.span(name)
				r.write(name, off, n, r.oneIn(4))
				if r.oneIn(3) {
					r.flush(name)
				}
			}
		}
	}
	r.beside(user(v0), user(v1))
	if err := r.settled(); err != nil {
		r.failed("%v", err)
	}
}

// mixed does all of it at random, with both volumes at the same time.
func mixed(r *run) {
	user := func(name string) func(*run) {
		return func(r *run) {
			for range 10 {
				switch r.rnd.IntN(10) {
				case 0, 1, 2, 3:
					off, n := r.span(name)
					r.write(name, off, n, r.oneIn(4))
				case 4:
					off, n := r.extents(name)
					r.write(name, off, n, r.oneIn(4))
				case 5:
					off, n := r.extents(name)
					r.trim(name, off, n, r.oneIn(4))
				case 6:
					off, n := r.extents(name)
					r.zero(name, off, n, r.oneIn(3), r.oneIn(4))
				case 7:
					r.flush(name)
				default:
					off, _ := r.extents(name)
					r.move(name, off, r.rnd.IntN(3))
				}
			}
		}
	}
	r.beside(user(v0), user(v1), flusher(v1), func(r *run) {
		r.create("w0", 2*r.shape.extent)
		user("w0")(r)
		r.delete("w0")
	})
}
