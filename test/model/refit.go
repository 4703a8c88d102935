package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"tierd/pkg/backing"
	"tierd/tiering"
)

// spares are the paths of backings that a World may get besides its first ones.
var spares = []string{"/x0", "/x1", "/x2"}

// A Refit is a change of what the open pool consists of.
type Refit struct {
	Path             string // of the backing
	Done             string // what, in words
	Changed          bool   // it was done, and not refused
	Member, Draining bool   // what the backing is if it was done
}

// Refit changes the backings of the open pool at random: it adds one, which may have
// been of the pool before, drains one, paces, pauses, resumes or calls off a drain, or
// takes away one that is empty. It is no error that the pool refuses.
func (w *World) Refit(ctx context.Context, rnd *rand.Rand) (Refit, error) {
	list := w.Pool.Backings()
	b := list[rnd.IntN(len(list))]
	draining := slices.DeleteFunc(slices.Clone(list), func(b tiering.BackingInfo) bool { return !b.Draining })
	k := rnd.IntN(12)
	if k >= 5 && len(draining) > 0 {
		b = draining[rnd.IntN(len(draining))]
	}
	r := Refit{Path: b.Path, Member: true, Draining: true}
	var err error
	drain := func(action tiering.DrainAction, rate *int64) {
		r.Done = fmt.Sprintf("drain %s: %s", b.Path, action)
		err = w.Pool.Drain(ctx, b.Path, action, rate, false)
	}
	switch {
	case k < 2:
		spec, there := w.spare(rnd)
		if !there {
			return Refit{}, nil
		}
		tier := fmt.Sprintf("t%d", rnd.IntN(len(w.cfg.Slots)))
		r = Refit{Path: spec.Path, Done: fmt.Sprintf("add %s to %s", spec.Path, tier), Member: true}
		err = w.addBacking(ctx, tier, spec)
	case k < 5 && len(list)-len(draining) > 2:
		var rate *int64
		if n := rnd.IntN(5); n < 3 {
			rate = &[]int64{0, 1 << 20, 1 << 30}[n]
		}
		drain(tiering.DrainStart, rate)
	case k == 5:
		drain(tiering.DrainPause, nil)
	case k == 6:
		drain(tiering.DrainResume, nil)
	case k == 7:
		r.Draining = false
		drain(tiering.DrainCancel, nil)
	default:
		// A drain that is as good as done is worth a moment.
		for range 20 {
			if i := slices.IndexFunc(w.Pool.Backings(), func(o tiering.BackingInfo) bool {
				return o.ID == b.ID && o.Drain.State == tiering.DrainMoving
			}); i < 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		r.Done, r.Member, r.Draining = "remove "+b.Path, false, false
		var gone tiering.Removed
		gone, err = w.Pool.RemoveBacking(ctx, b.Path, false)
		if err == nil && !gone.Wiped {
			err = errors.New(gone.WipeError)
		}
	}
	r.Changed = err == nil
	if errors.Is(err, tiering.ErrBusy) {
		r.Done += ": " + err.Error()
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", r.Done, err)
	}
	return r, err
}

// spare returns a backing that is no member, if there is one.
func (w *World) spare(rnd *rand.Rand) (spec tiering.BackingSpec, there bool) {
	free := slices.Concat(slices.Collect(maps.Keys(w.paths)), spares)
	slices.Sort(free)
	free = slices.Compact(free)
	for _, b := range w.Pool.Backings() {
		free = slices.DeleteFunc(free, func(path string) bool { return path == b.Path })
	}
	if len(free) == 0 {
		return spec, false
	}
	spec.Path = free[rnd.IntN(len(free))]
	if _, made := w.paths[spec.Path]; !made {
		spec.Size = backingSize(w.t, 2+rnd.IntN(4), w.cfg.ExtentSize)
	}
	return spec, true
}

func (w *World) addBacking(ctx context.Context, tier string, spec tiering.BackingSpec) error {
	o := tiering.AddOptions{Tier: tier, Backing: spec}
	_, err := w.Pool.AddBacking(ctx, o)
	if errors.Is(err, tiering.ErrRefused) {
		// A power cut in the middle of an addition may leave what nobody knows.
		o.Force = true
		_, err = w.Pool.AddBacking(ctx, o)
	}
	return err
}

// configured are the backings that a configuration lists besides those that the
// metadata know.
func (w *World) configured() (specs []tiering.BackingSpec) {
	for _, path := range slices.Sorted(maps.Keys(w.paths)) {
		if strings.HasPrefix(path, "/x") {
			specs = append(specs, tiering.BackingSpec{Path: path, Media: backing.SSD})
		}
	}
	return specs
}
