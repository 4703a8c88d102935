package config

import (
	"log/slog"
	"time"

	"tierd/pkg/units"
)

// A Config is a whole configuration file. Its zero value is not usable; start
// from Default.
type Config struct {
	Metadata   string     `yaml:"metadata"`    // path of the pool's metadata
	ExtentSize ExtentSize `yaml:"extent_size"` // used by pool creation alone
	Tiers      []Tier     `yaml:"tiers"`       // fastest first
	Volumes    []Volume   `yaml:"volumes"`     // made by pool creation
	Space      Space      `yaml:"space"`
	NBD        NBD        `yaml:"nbd"`
	Heat       Heat       `yaml:"heat"`
	Relocation Relocation `yaml:"relocation"`
	Metrics    Metrics    `yaml:"metrics"`
	Admin      Admin      `yaml:"admin"`
	Log        Log        `yaml:"log"`
	SameHost   SameHost   `yaml:"same_host"`

	source source
}

// source is where a decoded Config came from. It is empty for one made by hand.
type source struct {
	file  string
	lines map[string]int // path of a setting in the file to its line
}

// A Tier is a class of speed.
type Tier struct {
	Name      string    `yaml:"name"`
	Media     Media     `yaml:"media"`
	DirectIO  bool      `yaml:"direct_io"` // open the backings with O_DIRECT
	Endurance Endurance `yaml:"endurance"`
	Backings  []Backing `yaml:"backings"`
}

// Endurance is a tier's wear budget.
type Endurance struct {
	WritePerDay units.Size `yaml:"write_per_day"` // 0: no limit
}

// A Backing is a file or a block device of a tier.
type Backing struct {
	Path        string     `yaml:"path"`
	Size        units.Size `yaml:"size"`        // 0: what the file or device has
	Preallocate bool       `yaml:"preallocate"` // reserve a file's space at creation
	Simulate    Simulate   `yaml:"simulate"`
	// ForeignNBD says that an NBD device which it lies on is another server's.
	ForeignNBD bool `yaml:"foreign_nbd"`
}

// Simulate slows a backing down, for demonstrations and tests. 0 is no limit.
type Simulate struct {
	Latency   units.Duration `yaml:"latency"`
	IOPS      int64          `yaml:"iops"`
	Bandwidth units.Rate     `yaml:"bandwidth"`
}

// Enabled reports whether the backing is to be slowed down at all.
func (s Simulate) Enabled() bool { return s != Simulate{} }

// A Volume is a thin volume to be made with the pool.
type Volume struct {
	Name   string     `yaml:"name"`
	Size   units.Size `yaml:"size"`
	Policy string     `yaml:"policy"` // auto, highest, lowest or a tier's name

	Reservation units.Size `yaml:"reservation"` // what the volume can always allocate
	Quota       units.Size `yaml:"quota"`       // what it can allocate at most; 0: no limit
	OnFull      OnFull     `yaml:"on_full"`     // what a write does that finds no room

	AllowClients []string `yaml:"allow_clients"` // names in certificates that may use it; none: everybody may
}

// Space watches how much of the pool is free.
type Space struct {
	LowWater units.Percent `yaml:"low_water"` // below it the pool warns; 0: never
}

// NBD is the exporting side.
type NBD struct {
	Listen        []Listener `yaml:"listen"`
	DefaultExport string     `yaml:"default_export"` // "": the only volume, if there is one
	TLS           TLS        `yaml:"tls"`
	// InsecureRemotePlaintext lets clients without TLS use addresses that other machines
	// reach.
	InsecureRemotePlaintext bool `yaml:"insecure_remote_plaintext"`

	HandshakeTimeout units.Duration `yaml:"handshake_timeout"` // from connecting to the choice of an export
	SlowRequest      units.Duration `yaml:"slow_request"`      // requests that take longer are told of; 0: none
	MaxConnections   int            `yaml:"max_connections"`
	MaxInFlight      int            `yaml:"max_in_flight"` // requests of a connection
}

// TLS is what the NBD listeners offer and ask for.
type TLS struct {
	// UnixPlaintext lets clients on Unix sockets do without TLS though it is required.
	UnixPlaintext bool `yaml:"unix_plaintext"`

	Cert     string  `yaml:"cert"`
	Key      string  `yaml:"key"`
	ClientCA string  `yaml:"client_ca"`
	Mode     TLSMode `yaml:"mode"`
}

// Heat weighs accesses.
type Heat struct {
	ShortHalfLife units.Duration `yaml:"short_half_life"`
	LongHalfLife  units.Duration `yaml:"long_half_life"`
	ShortWeight   float64        `yaml:"short_weight"` // 0 to 1
}

// Relocation says when and how much may move.
type Relocation struct {
	Cycle      units.Duration `yaml:"cycle"`
	Hysteresis units.Percent  `yaml:"hysteresis"`
	Headroom   units.Percent  `yaml:"headroom"`
	Budget     Budget         `yaml:"budget"`
	Windows    []Window       `yaml:"windows"` // none: always open
}

// Budget limits the bytes moved.
type Budget struct {
	Rate     units.Rate `yaml:"rate"`
	PerCycle units.Size `yaml:"per_cycle"`
	PerDay   units.Size `yaml:"per_day"` // 0: no limit
}

// A Window is a time of the week when relocation may run. One that ends at or
// before its start ends on the following day; its days are those it begins on.
type Window struct {
	Days  Days       `yaml:"days"`
	Start TimeOfDay  `yaml:"start"`
	End   TimeOfDay  `yaml:"end"`
	Rate  units.Rate `yaml:"rate"` // 0: the budget's
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	Listen    string `yaml:"listen"`     // host:port; "": none
	WebConfig string `yaml:"web_config"` // path of the exporter-toolkit's file; "": plain HTTP
}

// Admin is the socket tierctl speaks to.
type Admin struct {
	Socket string `yaml:"socket"`
}

// Log says what is logged.
type Log struct {
	Level Level `yaml:"level"`
}

// Default paths and policies.
const (
	DefaultPath        = "/etc/tierd/tierd.yaml"
	DefaultAdminSocket = "/run/tierd/admin.sock"
	DefaultNBDSocket   = "/run/tierd/nbd.sock"

	PolicyAuto    = "auto"    // highest tier with room at first, then where the heat belongs
	PolicyHighest = "highest" // as fast as there is room
	PolicyLowest  = "lowest"  // as slow as there is room
)

// Default returns the meaning of what a file leaves out. It is not valid as it
// stands: there is no default for the metadata path and the tiers.
func Default() *Config {
	return &Config{
		Space:    Space{LowWater: 10},
		SameHost: SameHostWarn,
		NBD: NBD{
			Listen: []Listener{{Network: "unix", Address: DefaultNBDSocket}},
			TLS:    TLS{Mode: TLSOff},

			HandshakeTimeout: units.Duration(30 * time.Second), SlowRequest: units.Duration(10 * time.Second), MaxConnections: 4096, MaxInFlight: 256,
		},
		Heat: Heat{
			ShortHalfLife: units.Duration(time.Hour),
			LongHalfLife:  units.Duration(24 * time.Hour),
			ShortWeight:   0.2,
		},
		Relocation: Relocation{
			Cycle:      units.Duration(5 * time.Minute),
			Hysteresis: 25,
			Headroom:   2,
			Budget:     Budget{Rate: units.Rate(100 * units.MiB), PerCycle: 4 * units.GiB},
		},
		Metrics: Metrics{Listen: "127.0.0.1:9809"},
		Admin:   Admin{Socket: DefaultAdminSocket},
		Log:     Log{Level: Level(slog.LevelInfo)},
	}
}

// setDefaults is called by the decoder for each new element of a list.
func (v *Volume) setDefaults() { v.Policy = PolicyAuto }

func (w *Window) setDefaults() { w.Days = EveryDay }

// File returns the name of the file the configuration was decoded from.
func (c *Config) File() string { return c.source.file }

// Warnings names the settings of the file that this version accepts and does
// not act upon, one line each.
func (c *Config) Warnings() []string {
	var v validator
	v.source = c.source
	for i, t := range c.Tiers {
		if t.Endurance.WritePerDay > 0 {
			v.faultf(at(path("tiers", i), "endurance.write_per_day"),
				"is not in effect in this version: promotions are bounded by relocation.budget alone")
		}
	}
	for i, vol := range c.Volumes {
		if len(vol.AllowClients) > 0 && c.NBD.TLS.Mode != TLSOff && c.NBD.TLS.ClientCA == "" {
			v.faultf(at(path("volumes", i), "allow_clients"),
				"shuts out all clients but those on Unix sockets: without nbd.tls.client_ca none shows a certificate")
		}
	}
	lines := make([]string, len(v.faults))
	for i, f := range v.faults {
		lines[i] = f.String()
	}
	return lines
}
