package extentmap

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"go.etcd.io/bbolt"

	"tierd/tiering/extent"
)

var (
	bucketPool    = []byte("pool")
	bucketTiers   = []byte("tiers")
	bucketMembers = []byte("members")
	bucketVolumes = []byte("volumes")
	bucketMap     = []byte("map")

	keyRecord = []byte("record")
)

// Feature bits that this program knows: none yet.
const (
	knownReadOnlyCompat = 0
	knownIncompat       = 0
)

// checkFormat says whether this program may use a file with this record.
func (p *PoolRecord) checkFormat(readOnly bool) error {
	if p.FormatVersion > FormatVersion {
		return fmt.Errorf("%w: version %d, known is %d", ErrNewerFormat, p.FormatVersion, FormatVersion)
	}
	if p.FormatVersion == 0 {
		return fmt.Errorf("%w: no format version", ErrCorrupt)
	}
	if bits := p.Features.Incompat &^ knownIncompat; bits != 0 {
		return fmt.Errorf("%w: incompatible features %#x", ErrNewerFormat, bits)
	}
	if bits := p.Features.ReadOnlyCompat &^ knownReadOnlyCompat; bits != 0 && !readOnly {
		return fmt.Errorf("%w: features %#x", ErrReadOnlyFormat, bits)
	}
	return nil
}

// records is everything but the map, as of the last commit.
type records struct {
	pool    PoolRecord
	tiers   map[extent.TierID]TierRecord
	members map[extent.BackingID]Member
	volumes map[extent.VolumeID]Volume
}

// State returns a copy of everything but the map, as of the last commit.
func (d *DB) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return State{
		Pool:    d.records.pool,
		Tiers:   inOrder(d.records.tiers),
		Members: inOrder(d.records.members),
		Volumes: inOrder(d.records.volumes),
	}
}

// Pool returns the pool record alone, which costs the same however many volumes
// there are.
func (d *DB) Pool() PoolRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.records.pool
}

func inOrder[K extent.TierID | extent.BackingID | extent.VolumeID, V any](m map[K]V) []V {
	list := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[k])
	}
	return list
}

// load reads all records.
func (r *records) load(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketPool, bucketTiers, bucketMembers, bucketVolumes, bucketMap} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: it has no %q", ErrNotBolt, name)
		}
	}
	raw := tx.Bucket(bucketPool).Get(keyRecord)
	if raw == nil {
		return fmt.Errorf("%w: no pool record", ErrCorrupt)
	}
	// The version is looked at first: a later one may not decode at all.
	var format struct {
		FormatVersion uint32   `json:"format_version"`
		Features      Features `json:"features"`
	}
	if err := unmarshal(bucketPool, keyRecord, raw, &format); err != nil {
		return err
	}
	head := PoolRecord{FormatVersion: format.FormatVersion, Features: format.Features}
	if err := head.checkFormat(true); err != nil {
		return err
	}
	if err := unmarshal(bucketPool, keyRecord, raw, &r.pool); err != nil {
		return err
	}
	var err error
	if r.tiers, err = loadBucket(tx, bucketTiers, func(t TierRecord) extent.TierID { return t.ID }); err != nil {
		return err
	}
	if r.members, err = loadBucket(tx, bucketMembers, func(m Member) extent.BackingID { return m.ID }); err != nil {
		return err
	}
	if r.volumes, err = loadBucket(tx, bucketVolumes, func(v Volume) extent.VolumeID { return v.ID }); err != nil {
		return err
	}
	return r.check()
}

// check refuses records that do not go together: whoever builds a pool of them
// relies on it.
func (r *records) check() error {
	for id, m := range r.members {
		if m.State == MemberForgotten && !m.Emptying {
			continue // its tier may be gone as well
		}
		if _, ok := r.tiers[m.Tier]; !ok {
			return fmt.Errorf("%w: backing %d is in tier %d, which does not exist", ErrCorrupt, id, m.Tier)
		}
	}
	return nil
}

func unmarshal(bucket, key, raw []byte, v any) error {
	text, err := unseal(bucket, key, raw)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: record %x in %s: %w", ErrCorrupt, key, bucket, err)
	}
	return nil
}

// sealBytes is the length of what stands behind the JSON of a record: a newline,
// which compact JSON has none of, and a checksum in hexadecimal.
const sealBytes = 1 + 8

// seal appends the checksum, which covers the bucket and the key too.
func seal(bucket, key, text []byte) []byte {
	return fmt.Appendf(text, "\n%08x", sealCRC(bucket, key, text))
}

func sealCRC(bucket, key, text []byte) uint32 {
	crc := crc32.Update(0, castagnoli, bucket)
	crc = crc32.Update(crc, castagnoli, key)
	return crc32.Update(crc, castagnoli, text)
}

// unseal returns the JSON of a record. The first programs wrote no checksums: a
// record without one is taken as it is, until it is written again.
func unseal(bucket, key, raw []byte) ([]byte, error) {
	at := len(raw) - sealBytes
	if at < 0 || raw[at] != '\n' {
		return raw, nil
	}
	if sum := fmt.Sprintf("%08x", sealCRC(bucket, key, raw[:at])); sum != string(raw[at+1:]) {
		return nil, fmt.Errorf("%w: record %x in %s: checksum %q, want %s", ErrCorrupt, key, bucket, raw[at+1:], sum)
	}
	return raw[:at], nil
}

func loadBucket[K extent.TierID | extent.BackingID | extent.VolumeID, V any](tx *bbolt.Tx, name []byte, id func(V) K) (map[K]V, error) {
	m := make(map[K]V)
	err := tx.Bucket(name).ForEach(func(k, raw []byte) error {
		var v V
		if err := unmarshal(name, k, raw, &v); err != nil {
			return err
		}
		if want := idKey(id(v)); string(k) != string(want) {
			return fmt.Errorf("%w: record %x in %s says it is %x", ErrCorrupt, k, name, want)
		}
		m[id(v)] = v
		return nil
	})
	return m, err
}

// idKey is the key of a record: its id, big-endian, so that keys sort like ids.
func idKey[K extent.TierID | extent.BackingID | extent.VolumeID](id K) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(id))
}

// putRecord stores v, keeping the fields of later versions that it replaces.
func putRecord(tx *bbolt.Tx, bucket, key []byte, v any) error {
	b := tx.Bucket(bucket)
	old, err := unseal(bucket, key, b.Get(key))
	if err != nil {
		return err
	}
	text, err := mergeJSON(old, v)
	if err != nil {
		return fmt.Errorf("encode record %x in %s: %w", key, bucket, err)
	}
	return b.Put(key, seal(bucket, key, text))
}
