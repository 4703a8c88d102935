package tiering

import (
	"context"
	"log/slog"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/clock"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

// BackingSpec says where a backing is and how to open it.
type BackingSpec struct {
	Path        string
	Size        int64 // bytes of a file to be created; 0: as large as it is
	Preallocate bool
	Direct      bool
	Media       backing.Media
	Simulate    *backing.Simulate
	ForeignNBD  bool // an NBD device that it lies on is not served by this pool
}

// TierSpec describes one tier of a pool to be created.
type TierSpec struct {
	Name     string
	Media    backing.Media
	Backings []BackingSpec
}

// VolumeSpec describes a volume to be created.
type VolumeSpec struct {
	Name   string
	Size   int64  // bytes, a multiple of 4096
	Policy string // auto, highest, lowest or a tier's name; "" is auto
	// Clients are the names in certificates that may use it; none: everybody may.
	Clients []string

	Space
}

// OpenStore opens the store of a backing; tests put other stores here. create
// asks for a new file.
type OpenStore func(ctx context.Context, spec BackingSpec, create, readOnly bool) (backing.Store, error)

// OpenBacking is the OpenStore of the product: files and block devices.
func OpenBacking(ctx context.Context, spec BackingSpec, create, readOnly bool) (backing.Store, error) {
	o := backing.Options{
		Path: spec.Path, Size: spec.Size, Direct: spec.Direct, Media: spec.Media, Simulate: spec.Simulate,
		Preallocate: spec.Preallocate, Create: create, ReadOnly: readOnly,
	}
	if !create {
		o.Size = 0 // what it must have at least is for its superblock to say
	}
	return backing.Open(ctx, o)
}

// Options are what Open needs beside the metadata file. Zero fields get
// defaults.
type Options struct {
	// Metadata is the path of the bbolt file; the staged log and the heat file
	// lie beside it.
	Metadata string
	// Backings are hints where to look for the pool's members, with how to open
	// them. A member is recognised by what its superblock says, not by its path.
	Backings []BackingSpec

	Heat       heat.Params
	Relocation RelocationOptions

	// ReadOnly opens the pool for salvage: nothing at all is written, to no file,
	// and all volumes are read-only. After an unclean stop the staged log is replayed
	// in memory.
	ReadOnly bool
	// Degraded permits to open a pool some of whose backings are missing. I/O on what
	// is there fails with ErrBackingMissing; the rest serves.
	Degraded bool

	// LowWater is the share of free space below which the pool warns; 0: never.
	LowWater float64

	// RoundInterval is how often volumes with staged entries are flushed
	// without being asked to. Default 5 s.
	RoundInterval time.Duration
	// BootID names the running boot. Default: the kernel's.
	BootID string

	Clock     clock.Clock
	Logger    *slog.Logger
	OpenStore OpenStore
	// Progress, if not nil, is told how far the offline work on a pool is: done of
	// total things of a step, such as "slot tables".
	Progress func(step string, done, total int64)
	// Fault is called before and after each commit of the metadata; tests make
	// commits fail with it.
	Fault MetadataFault
}

// RelocationOptions are the settings of the background movement. All of them can
// be changed on a running pool.
type RelocationOptions struct {
	Cycle      time.Duration // time between two plans
	Hysteresis float64       // margin by which a swap must win
	Headroom   float64       // share of a tier that promotions leave free
	Limits     schedule.Limits
	Calendar   schedule.Calendar
	// Workers is how many extents are copied at once. Default 2.
	Workers int
	// Verify reads every copy back and compares checksums before the switch, also of
	// pieces that were written to meanwhile and copied again.
	Verify bool
	// Planner changes the planner's settings beyond those above; nil leaves
	// them as they are.
	Planner func(*plan.Policy)
}

func (o *Options) setDefaults() {
	if o.Heat == (heat.Params{}) {
		o.Heat = heat.DefaultParams()
	}
	if o.Relocation.Cycle == 0 {
		o.Relocation.Cycle = 5 * time.Minute
	}
	o.Heat.Cycle = o.Relocation.Cycle
	if o.Relocation.Workers == 0 {
		o.Relocation.Workers = 2
	}
	if o.RoundInterval == 0 {
		o.RoundInterval = 5 * time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OpenStore == nil {
		o.OpenStore = OpenBacking
	}
}
