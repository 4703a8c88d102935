package extentmap

import (
	"bytes"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"tierd/tiering/extent"
)

// Check reads the whole file at path and returns what is wrong with it, one
// line each: pages that cannot be read or do not form a tree,
// records and chunks that do not decode, two extents in one slot, extents of
// unknown volumes or past their end, slots of unknown backings or past theirs.
// Nothing is written. The error says that there was nothing to check, and is
// one of Open's; a damage that keeps the file from being opened is a problem.
func Check(path string) (problems []string, err error) {
	k := &checker{}
	pages, err := CheckPages(path)
	if err != nil || len(pages.Problems) > 0 {
		return pages.Problems, err
	}
	d, err := Open(path, Options{ReadOnly: true})
	if errors.Is(err, ErrCorrupt) {
		return append(k.problems, err.Error()), nil
	} else if err != nil {
		return nil, fmt.Errorf("check metadata: %w", err)
	}
	defer d.Close()

	k.state = d.State()
	err = d.submit(&request{read: func(tx *bbolt.Tx) error {
		k.walk(tx)
		for err := range tx.Check() { // bbolt's own check, which pages.go is compared with
			k.report("page check: %v", err)
		}
		return nil
	}})
	if err != nil {
		k.report("%v", err)
	}
	return k.problems, nil
}

type checker struct {
	problems []string
	state    State
}

// report adds a problem, and says whether there is room for more.
func (k *checker) report(format string, args ...any) bool {
	if len(k.problems) < maxProblems {
		k.problems = append(k.problems, fmt.Sprintf(format, args...))
	}
	return len(k.problems) < maxProblems
}

// walk visits every key in order.
func (k *checker) walk(tx *bbolt.Tx) {
	for _, name := range [][]byte{bucketPool, bucketTiers, bucketMembers, bucketVolumes, bucketMap} {
		visit := func(key, value []byte) bool { return true }
		if bytes.Equal(name, bucketMap) {
			visit = k.chunkVisitor()
		}
		c := tx.Bucket(name).Cursor()
		for key, value := c.First(); key != nil && visit(key, value); key, value = c.Next() {
		}
	}
}

// chunkVisitor returns the function that checks the chunks of the map, and
// them against each other.
func (k *checker) chunkVisitor() func(key, value []byte) bool {
	volumes := make(map[extent.VolumeID]extent.Index)
	size, sizeErr := extent.NewSize(k.state.Pool.ExtentSize)
	if sizeErr != nil {
		k.report("pool record: %v", sizeErr)
	} else {
		for _, v := range k.state.Volumes {
			volumes[v.ID] = size.Count(v.Size)
		}
	}
	// One bit per slot, since a map of owners would not fit into memory.
	owned := make(map[extent.BackingID][]uint64)
	slots := make(map[extent.BackingID]uint32)
	for _, m := range k.state.Members {
		slots[m.ID] = m.Slots
		owned[m.ID] = make([]uint64, (uint64(m.Slots)+63)/64)
	}

	return func(key, value []byte) bool {
		vol, first, err := parseChunkKey(key)
		if err != nil {
			return k.report("%v", err)
		}
		var c chunk
		if err := c.decode(key, value); err != nil {
			return k.report("volume %d, extents from %d: %v", vol, first, err)
		}
		count, known := volumes[vol]
		if !known && sizeErr == nil && !k.report("volume %d, extents from %d: no such volume", vol, first) {
			return false
		}
		for i, l := range c {
			if l.IsZero() {
				continue
			}
			at := extent.Key{Volume: vol, Index: first + extent.Index(i)}
			bits, member := owned[l.Backing]
			var ok = true
			switch {
			case known && at.Index >= count:
				ok = k.report("%v: past the end of the volume (%d extents)", at, count)
			case !member:
				ok = k.report("%v: in %v, which is not in the pool", at, l)
			case uint32(l.Slot) >= slots[l.Backing]:
				ok = k.report("%v: in %v, past the last of its %d slots", at, l, slots[l.Backing])
			case bits[l.Slot/64]>>(l.Slot%64)&1 != 0:
				ok = k.report("%v: in %v, which another extent has too", at, l)
			default:
				bits[l.Slot/64] |= 1 << (l.Slot % 64)
			}
			if !ok {
				return false
			}
		}
		return true
	}
}
