package extentmap

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"tierd/tiering/extent"
)

// FormatVersion is the version of the metadata file this code writes.
const FormatVersion = 1

// PoolState says how far the creation of the pool has come.
type PoolState uint8

// MemberState says what may be done with a backing. The numbers equal those
// of ondisk.MemberState, so that one converts to the other.
type MemberState uint8

// VolumeState says whether a volume is in use or being deleted. The numbers
// equal those of ondisk.VolumeState.
type VolumeState uint8

// States. A pool and a member begin as creating; only `pool create` and
// `backing add` look at those.
const (
	PoolCreating PoolState = iota + 1
	PoolActive
)

const (
	MemberOK        MemberState = iota + 1 // serves
	MemberDraining                         // serves, takes nothing new
	MemberFailed                           // lost written data; only an operator clears it
	MemberForgotten                        // given up by the operator; refused if it comes back
	MemberCreating                         // being added; holds nothing yet
)

const (
	VolumeActive   VolumeState = iota + 1 // exported
	VolumeDeleting                        // no longer exported; its extents are being unmapped
)

var (
	poolStateNames   = []string{"", "creating", "active"}
	memberStateNames = []string{"", "ok", "draining", "failed", "forgotten", "creating"}
	volumeStateNames = []string{"", "active", "deleting"}
)

func (s PoolState) String() string   { return stateName(poolStateNames, uint8(s)) }
func (s MemberState) String() string { return stateName(memberStateNames, uint8(s)) }
func (s VolumeState) String() string { return stateName(volumeStateNames, uint8(s)) }

// MarshalText gives the word that is stored.
func (s PoolState) MarshalText() ([]byte, error) { return stateText(poolStateNames, uint8(s)) }

// MarshalText gives the word that is stored.
func (s MemberState) MarshalText() ([]byte, error) { return stateText(memberStateNames, uint8(s)) }

// MarshalText gives the word that is stored.
func (s VolumeState) MarshalText() ([]byte, error) { return stateText(volumeStateNames, uint8(s)) }

// UnmarshalText is an error for an unknown word.
func (s *PoolState) UnmarshalText(b []byte) (err error) {
	return parseState(poolStateNames, b, (*uint8)(s))
}

// UnmarshalText is an error for an unknown word.
func (s *MemberState) UnmarshalText(b []byte) (err error) {
	return parseState(memberStateNames, b, (*uint8)(s))
}

// UnmarshalText is an error for an unknown word.
func (s *VolumeState) UnmarshalText(b []byte) (err error) {
	return parseState(volumeStateNames, b, (*uint8)(s))
}

func stateName(names []string, s uint8) string {
	if s == 0 || int(s) >= len(names) {
		return fmt.Sprintf("state %d", s)
	}
	return names[s]
}

func stateText(names []string, s uint8) ([]byte, error) {
	if s == 0 || int(s) >= len(names) {
		return nil, fmt.Errorf("state %d has no name", s)
	}
	return []byte(names[s]), nil
}

func parseState(names []string, text []byte, s *uint8) error {
	for i, name := range names {
		if i > 0 && name == string(text) {
			*s = uint8(i)
			return nil
		}
	}
	return fmt.Errorf("unknown state %q", text)
}

// Features are the bits of format extensions in use. An unknown Compat bit can
// be ignored, an unknown ReadOnlyCompat bit allows reading alone, an unknown
// Incompat bit forbids even that.
type Features struct {
	Compat         uint64 `json:"compat"`
	ReadOnlyCompat uint64 `json:"read_only_compat"`
	Incompat       uint64 `json:"incompat"`
}

// PoolRecord is what the metadata says of the pool as a whole.
type PoolRecord struct {
	ID            uuid.UUID `json:"id"`
	FormatVersion uint32    `json:"format_version"`
	Features      Features  `json:"features"`
	ExtentSize    int64     `json:"extent_size"` // bytes
	State         PoolState `json:"state"`
	Created       time.Time `json:"created"`

	Incarnation    uint64 `json:"incarnation"`     // raised durably at each open
	LogIncarnation uint64 `json:"log_incarnation"` // incarnation of the staged log that goes with this map
	Commit         uint64 `json:"commit"`          // number of the last commit; set by Commit alone
	MaxSeq         uint64 `json:"max_seq"`         // highest sequence known to be used
	LogEnd         uint64 `json:"log_end"`         // records of the staged log beyond it are void, unless 0

	Continuity uuid.UUID `json:"continuity"` // renewed when answered data may have been lost
	CleanStop  bool      `json:"clean_stop"`
	BootID     string    `json:"boot_id"`
	// StampedStop is the last incarnation of which every backing that was there got the
	// stamp of the clean stop, 0 if none.
	StampedStop uint64 `json:"stamped_stop"`

	NextVolume       extent.VolumeID  `json:"next_volume"`  // lowest id never given out
	NextBacking      extent.BackingID `json:"next_backing"` // lowest id never given out
	VolumeGeneration uint64           `json:"volume_generation"`

	LostWrites []LostWrites `json:"lost_writes"` // by volume
}

// LostWrites says that answered writes to a volume may be lost though its extents are
// elsewhere by now: a move onto the backing was taken back, or one off it was under
// way when it failed. Its flushes fail until an operator clears the backing, or gives
// it up.
type LostWrites struct {
	Volume  extent.VolumeID  `json:"volume"`
	Backing extent.BackingID `json:"backing"`
}

// TierRecord names one tier.
type TierRecord struct {
	ID    extent.TierID `json:"id"`
	Name  string        `json:"name"`
	Media string        `json:"media"`
}

// Member is a backing that belongs, or belonged, to the pool.
type Member struct {
	ID          extent.BackingID `json:"id"`
	UUID        uuid.UUID        `json:"uuid"`
	Tier        extent.TierID    `json:"tier"`
	Path        string           `json:"path"`
	Size        int64            `json:"size"` // bytes
	Slots       uint32           `json:"slots"`
	State       MemberState      `json:"state"`
	Incarnation uint64           `json:"incarnation"` // the last one written to its superblock
	Instance    string           `json:"instance"`    // backing.Store.Instance at the last open
	Error       string           `json:"error"`       // why it failed

	// Away says that the pool was in use without it: when it is back it is synced,
	// and its slot table brought into line with the map.
	Away bool `json:"away"`
	// StampedStop is PoolRecord.StampedStop of the clean stop after which the pool was first
	// in use without it, for as long as it is Away: it has a stamp of that. 0: none is known of.
	StampedStop uint64 `json:"stamped_stop"`
	// Unsynced says that it went missing before it was known to be synced: answered
	// data there may be lost.
	Unsynced bool `json:"unsynced"`
	// Emptying says of a forgotten one that the map still has extents on it.
	Emptying bool `json:"emptying"`
	// BadEntries says that slots of it are set aside because their entries in the slot
	// table are damaged or cannot be read. The next start looks through it again.
	BadEntries bool `json:"bad_entries"`
	// How to open it where the configuration does not mention it.
	Direct      bool `json:"direct"`
	Preallocate bool `json:"preallocate"`
	// Drain says that it is being emptied, whatever its state.
	Drain Drain `json:"drain"`
}

// Drain is the order to empty a backing.
type Drain struct {
	On      bool      `json:"on"`
	Paused  bool      `json:"paused"`
	Rate    int64     `json:"rate"`    // bytes per second; 0: within the movement budget
	Extents int64     `json:"extents"` // on it when the order was given
	Begun   time.Time `json:"begun"`
}

// Volume is a thin virtual disk. Its extents are in the map.
type Volume struct {
	ID       extent.VolumeID `json:"id"`
	UUID     uuid.UUID       `json:"uuid"`
	Name     string          `json:"name"`
	Size     int64           `json:"size"` // bytes
	Policy   string          `json:"policy"`
	State    VolumeState     `json:"state"`
	Created  time.Time       `json:"created"`
	ReadOnly bool            `json:"read_only"`

	Reservation int64         `json:"reservation"`  // bytes kept for it though others would fill the pool; 0: none
	Quota       int64         `json:"quota"`        // bytes that its mapped extents may take; 0: no limit
	OnFullWait  time.Duration `json:"on_full_wait"` // how long a write waits for room before it fails

	Clients string `json:"clients"` // names in certificates that may use it, one a line; "": everybody may
}

// State is everything in the metadata but the map, each list in order of ID.
type State struct {
	Pool    PoolRecord
	Tiers   []TierRecord
	Members []Member
	Volumes []Volume
}

// MapChange sets where one extent lives; a zero To unmaps it.
type MapChange struct {
	Key extent.Key
	To  extent.Location
}

// Changes is one request to Commit. Within it the order of application is:
// Pool, Tiers, DropTiers, Members, DropMembers, Volumes, DropVolumes; of two changes of
// the same key the later one wins.
type Changes struct {
	Map         []MapChange
	Pool        func(*PoolRecord) // edits; Commit and ID cannot be changed
	Tiers       []TierRecord      // put
	DropTiers   []extent.TierID
	Members     []Member // put
	DropMembers []extent.BackingID
	Volumes     []Volume          // put
	DropVolumes []extent.VolumeID // with whatever extents they still have
}
