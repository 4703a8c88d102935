package extentmap

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
)

// prepared is a request that was found valid: writing it can fail by the disk
// alone. That matters, because requests share a transaction, and its first
// error is the last thing the file sees.
type prepared struct {
	*Changes
	create bool // make the buckets first
}

// Commit makes c durable and returns the number of the commit that holds it.
// Requests that wait at the same time share one commit, in the order in which
// they came.
//
// A ctx that is done already is an error, and nothing happens. After that
// Commit waits for the outcome whatever becomes of ctx, since the caller could
// not know it otherwise. ErrInvalidChange concerns this request alone.
// ErrMetadataFailed, from the first failed commit on, says that it is unknown
// whether the change is on disk.
func (d *DB) Commit(ctx context.Context, c *Changes) (commit uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("commit extent map: %w", err)
	}
	if d.opts.ReadOnly {
		return 0, fmt.Errorf("commit extent map: %w", ErrReadOnly)
	}
	p, err := prepare(c)
	if err != nil {
		return 0, fmt.Errorf("commit extent map: %w", err)
	}
	r := &request{commit: p}
	if err := d.submit(r); err != nil {
		return 0, fmt.Errorf("commit extent map: %w", err)
	}
	return r.number, nil
}

// prepare checks everything of c that can be checked without the pool record.
func prepare(c *Changes) (*prepared, error) {
	for _, m := range c.Map {
		if err := m.check(); err != nil {
			return nil, err
		}
	}
	for _, m := range c.Members {
		if m.ID == 0 || m.ID > extent.MaxBackingID {
			return nil, fmt.Errorf("%w: backing id %d", ErrInvalidChange, m.ID)
		}
	}
	for _, v := range c.Volumes {
		if v.ID == 0 {
			return nil, fmt.Errorf("%w: volume id 0", ErrInvalidChange)
		}
	}
	// States without a name and times past the year 9999 do not encode.
	for _, list := range []any{c.Tiers, c.Members, c.Volumes} {
		if _, err := json.Marshal(list); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidChange, err)
		}
	}
	return &prepared{Changes: c}, nil
}

func (m *MapChange) check() error {
	switch {
	case m.Key.Volume == 0 || m.Key.Index > maxIndex:
		return fmt.Errorf("%w: %v", ErrInvalidChange, m.Key)
	case m.To.Backing > extent.MaxBackingID || m.To.IsZero() && m.To.Slot != 0:
		return fmt.Errorf("%w: %v to %v", ErrInvalidChange, m.Key, m.To)
	}
	return nil
}

// prepareState makes the request that fills a new file.
func prepareState(s State) (*prepared, error) {
	p, err := prepare(&Changes{Tiers: s.Tiers, Members: s.Members, Volumes: s.Volumes})
	if err != nil {
		return nil, err
	}
	if err := s.Pool.checkFormat(false); err != nil {
		return nil, err
	}
	if _, err := json.Marshal(s.Pool); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidChange, err)
	}
	p.Pool = func(r *PoolRecord) { *r = s.Pool }
	p.create = true
	return p, nil
}

// commitBatch carries out a batch of commits in one transaction. Owner
// goroutine.
func (d *DB) commitBatch(batch []*request) {
	// The pool record is edited outside of the transaction, because an edit is
	// the caller's code: one that fails is taken out of the batch.
	pool := d.records.pool
	live := batch[:0:0]
	for _, r := range batch {
		edited, err := editPool(pool, r.commit.Pool)
		if err != nil {
			r.err = err
			continue
		}
		pool = edited
		live = append(live, r)
	}
	if len(live) == 0 {
		return
	}
	pool.Commit++

	var used int64
	err := protect(func() error {
		var err error
		used, err = d.writeBatch(live, pool)
		return err
	})
	if err != nil && mutant.On(mutant.CommitRetried) {
		used, err = d.writeBatch(live, pool)
	}
	if err != nil {
		err = d.fail(err)
		for _, r := range live {
			r.err = err
		}
		return
	}

	d.mu.Lock()
	d.records.pool = pool
	for _, r := range live {
		d.records.apply(r.commit)
		r.number = pool.Commit
	}
	d.mu.Unlock()
	d.reserve(used)
}

// editPool returns pool as edit leaves it. What Commit itself looks after
// cannot be edited.
func editPool(pool PoolRecord, edit func(*PoolRecord)) (PoolRecord, error) {
	if edit == nil {
		return pool, nil
	}
	edited := pool
	if err := protect(func() error { edit(&edited); return nil }); err != nil {
		return pool, fmt.Errorf("%w: edit of the pool record: %w", ErrInvalidChange, err)
	}
	edited.ID, edited.Commit = pool.ID, pool.Commit
	if err := edited.checkFormat(false); err != nil {
		return pool, fmt.Errorf("%w: %w", ErrInvalidChange, err)
	}
	if _, err := json.Marshal(edited); err != nil {
		return pool, fmt.Errorf("%w: %w", ErrInvalidChange, err)
	}
	return edited, nil
}

// writeBatch writes one transaction and returns the bytes of the file in use
// after it. Any error, whatever its kind, is that of the transaction, and it
// is left as it is: see doc.go.
func (d *DB) writeBatch(live []*request, pool PoolRecord) (used int64, err error) {
	tx, err := d.bolt.Begin(true)
	if err != nil {
		return 0, err
	}
	var changes []MapChange
	for _, r := range live {
		if err := r.commit.writeRecords(tx); err != nil {
			return 0, err
		}
		changes = append(changes, r.commit.Map...)
	}
	if err := writeMap(tx, changes); err != nil {
		return 0, err
	}
	for _, r := range live {
		for _, v := range r.commit.DropVolumes {
			if err := dropChunks(tx, v); err != nil {
				return 0, err
			}
		}
	}
	if err := putRecord(tx, bucketPool, keyRecord, pool); err != nil {
		return 0, err
	}
	if err := d.fault(FaultBefore, pool.Commit); err != nil {
		if mutant.On(mutant.CommitRetried) {
			_ = tx.Rollback()
		}
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	if err := d.fault(FaultAfter, pool.Commit); err != nil {
		return 0, err
	}
	return d.used(), nil
}

func (d *DB) fault(p FaultPoint, n uint64) error {
	if d.opts.Fault == nil {
		return nil
	}
	return d.opts.Fault(p, n)
}

// writeAll writes a prepared state into an empty file.
func (p *prepared) writeAll(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketPool, bucketTiers, bucketMembers, bucketVolumes, bucketMap} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	var pool PoolRecord
	p.Pool(&pool)
	if err := putRecord(tx, bucketPool, keyRecord, pool); err != nil {
		return err
	}
	return p.writeRecords(tx)
}

// writeRecords puts and drops tiers, members and volumes.
func (p *prepared) writeRecords(tx *bbolt.Tx) error {
	for _, t := range p.Tiers {
		if err := putRecord(tx, bucketTiers, idKey(t.ID), t); err != nil {
			return err
		}
	}
	for _, id := range p.DropTiers {
		if err := tx.Bucket(bucketTiers).Delete(idKey(id)); err != nil {
			return err
		}
	}
	for _, m := range p.Members {
		if err := putRecord(tx, bucketMembers, idKey(m.ID), m); err != nil {
			return err
		}
	}
	for _, id := range p.DropMembers {
		if err := tx.Bucket(bucketMembers).Delete(idKey(id)); err != nil {
			return err
		}
	}
	for _, v := range p.Volumes {
		if err := putRecord(tx, bucketVolumes, idKey(v.ID), v); err != nil {
			return err
		}
	}
	for _, id := range p.DropVolumes {
		if err := tx.Bucket(bucketVolumes).Delete(idKey(id)); err != nil {
			return err
		}
	}
	return nil
}

// apply does to the records in memory what writeRecords did to those on disk.
func (r *records) apply(p *prepared) {
	for _, t := range p.Tiers {
		r.tiers[t.ID] = t
	}
	for _, id := range p.DropTiers {
		delete(r.tiers, id)
	}
	for _, m := range p.Members {
		r.members[m.ID] = m
	}
	maps.DeleteFunc(r.members, func(id extent.BackingID, _ Member) bool { return slices.Contains(p.DropMembers, id) })
	for _, v := range p.Volumes {
		r.volumes[v.ID] = v
	}
	for _, id := range p.DropVolumes {
		delete(r.volumes, id)
	}
}

// writeMap applies changes to the map, of two for one key the later. It visits
// the chunks in the order of their keys, which is bbolt's too.
func writeMap(tx *bbolt.Tx, changes []MapChange) error {
	slices.SortStableFunc(changes, func(a, b MapChange) int {
		return cmp.Or(cmp.Compare(a.Key.Volume, b.Key.Volume), cmp.Compare(a.Key.Index, b.Key.Index))
	})
	b := tx.Bucket(bucketMap)
	var c chunk
	for len(changes) > 0 {
		key := chunkKey(changes[0].Key.Volume, changes[0].Key.Index)
		if err := c.decode(key, b.Get(key)); err != nil {
			return err
		}
		n := 0
		for n < len(changes) && bytes.Equal(chunkKey(changes[n].Key.Volume, changes[n].Key.Index), key) {
			c[changes[n].Key.Index%ChunkEntries] = changes[n].To
			n++
		}
		changes = changes[n:]
		var err error
		if v := c.encode(key); v != nil {
			err = b.Put(key, v)
		} else {
			err = b.Delete(key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropChunks deletes all chunks of a volume.
func dropChunks(tx *bbolt.Tx, v extent.VolumeID) error {
	b := tx.Bucket(bucketMap)
	prefix := chunkKey(v, 0)[:4]
	// Deleting under a cursor makes it skip keys, so they are collected first.
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
