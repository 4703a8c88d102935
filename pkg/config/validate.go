package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"tierd/pkg/units"
)

// Limits that the pool's formats set, and the kernel.
const (
	maxTiers      = 255       // a tier's rank is one byte
	maxBackings   = 1<<10 - 1 // a backing's number is ten bits of a map entry
	sectorSize    = 4096      // volumes are multiples of the largest block that clients use
	maxSocketPath = 107       // bytes of sockaddr_un
	minCycle      = 10 * time.Millisecond
)

// Validate returns an *Error with every fault of the configuration, or nil. It
// looks at the file system only to find backings named twice by links.
func (c *Config) Validate() error {
	v := validator{source: c.source}
	v.config(c)
	return newError(c.source.file, v.faults)
}

// A validator collects faults.
type validator struct {
	source   source
	decoding []Fault // found by the decoder, not to be repeated
	faults   []Fault
}

// faultf notes a fault at p, unless the value there could not be decoded.
func (v *validator) faultf(p, format string, args ...any) {
	for _, f := range v.decoding {
		if f.Path == p || strings.HasPrefix(p, f.Path+".") || strings.HasPrefix(p, f.Path+"[") {
			return
		}
	}
	v.faults = append(v.faults, Fault{Line: v.line(p), Path: p, Text: fmt.Sprintf(format, args...)})
}

// check notes err, if any, at p.
func (v *validator) check(p string, err error) {
	if err != nil {
		v.faultf(p, "%s", err)
	}
}

// given reports whether the file has a value at p.
func (v *validator) given(p string) bool { return v.source.lines[p] != 0 }

// line returns the line of p or of the nearest thing around it that has one: 1
// for what is missing from the top of a file, 0 without a file.
func (v *validator) line(p string) int {
	if v.source.lines == nil {
		return 0
	}
	for ; p != ""; p = parentOf(p) {
		if line := v.source.lines[p]; line != 0 {
			return line
		}
	}
	return 1
}

func (v *validator) config(c *Config) {
	v.path("metadata", c.Metadata, true)
	if c.ExtentSize != 0 && !c.ExtentSize.valid() {
		v.faultf("extent_size", "must be auto or a power of two from %s to %s (got %s)", MinExtentSize, MaxExtentSize, c.ExtentSize)
	}
	v.tiers(c.Tiers)
	v.files(c)
	v.volumes(c)
	if w := c.Space.LowWater; w < 0 || w > 100 {
		v.faultf("space.low_water", "must be from 0%% to 100%% (got %s)", w)
	}
	v.nbd(&c.NBD)
	switch c.SameHost {
	case SameHostOff, SameHostWarn, SameHostStrict:
	default:
		v.faultf("same_host", "must be off, warn or strict (got %s)", units.Quote(string(c.SameHost)))
	}
	v.heat(&c.Heat)
	v.relocation(c)
	v.metrics(&c.Metrics)
	v.socket("admin.socket", c.Admin.Socket)
	v.sockets(c)
}

func (v *validator) tiers(tiers []Tier) {
	if len(tiers) == 0 {
		v.faultf("tiers", "must have at least one tier")
	}
	if len(tiers) > maxTiers {
		v.faultf("tiers", "must be at most %d (got %d)", maxTiers, len(tiers))
	}
	names := make(map[string]string)
	backings := 0
	for i, t := range tiers {
		p := path("tiers", i)
		v.name(at(p, "name"), t.Name, CheckTierName, names)
		if m := t.Media; m != "" && m != SSD && m != HDD {
			v.faultf(at(p, "media"), "must be ssd or hdd (got %s)", units.Quote(string(m)))
		}
		if w := at(p, "endurance.write_per_day"); t.Endurance.WritePerDay < 0 || t.Endurance.WritePerDay == 0 && v.given(w) {
			v.faultf(w, "must be above 0; leave it out for no limit (got %s)", t.Endurance.WritePerDay)
		}
		if len(t.Backings) == 0 {
			v.faultf(at(p, "backings"), "must have at least one backing")
		}
		for j, b := range t.Backings {
			v.backing(path(at(p, "backings"), j), &b)
		}
		backings += len(t.Backings)
	}
	if backings > maxBackings {
		v.faultf("tiers", "must have at most %d backings in all (got %d)", maxBackings, backings)
	}
}

func (v *validator) backing(p string, b *Backing) {
	v.path(at(p, "path"), b.Path, true)
	if b.Size < 0 || b.Size == 0 && v.given(at(p, "size")) {
		v.faultf(at(p, "size"), "must be above 0 (got %s)", b.Size)
	}
	if b.Preallocate && b.Size == 0 {
		v.faultf(at(p, "preallocate"), "must come with a size")
	}
	s := b.Simulate
	if s.Latency < 0 {
		v.faultf(at(p, "simulate.latency"), "must be 0 or more (got %s)", s.Latency)
	}
	if s.IOPS < 0 {
		v.faultf(at(p, "simulate.iops"), "must be 0 or more (got %d)", s.IOPS)
	}
	if s.Bandwidth < 0 {
		v.faultf(at(p, "simulate.bandwidth"), "must be 0 or more (got %s)", s.Bandwidth)
	}
}

// files refuses two uses of one file, be it by the same path or through links.
func (v *validator) files(c *Config) {
	type use struct {
		at, path string
		info     os.FileInfo // nil if there is nothing there yet
	}
	var uses []use
	add := func(p, file string) {
		if file == "" {
			return
		}
		u := use{at: p, path: filepath.Clean(file)}
		u.info, _ = os.Stat(file) // what is not there has no links either
		for _, o := range uses {
			switch {
			case o.path == u.path:
				v.faultf(p, "must be another file than %s (got %s)", o.at, units.Quote(file))
			case u.info != nil && o.info != nil && sameFile(u.info, o.info):
				v.faultf(p, "must be another file than %s (got %s, which is the same file as %s)", o.at, units.Quote(file), units.Quote(o.path))
			default:
				continue
			}
			return
		}
		uses = append(uses, u)
	}
	add("metadata", c.Metadata)
	for i, t := range c.Tiers {
		for j, b := range t.Backings {
			add(at(path(at(path("tiers", i), "backings"), j), "path"), b.Path)
		}
	}
}

// sameFile reports whether a and b are one file, or nodes of one block device.
func sameFile(a, b os.FileInfo) bool {
	if os.SameFile(a, b) {
		return true
	}
	const kinds = os.ModeDevice | os.ModeCharDevice
	if a.Mode()&kinds != os.ModeDevice || b.Mode()&kinds != os.ModeDevice {
		return false
	}
	sa, okA := a.Sys().(*syscall.Stat_t)
	sb, okB := b.Sys().(*syscall.Stat_t)
	return okA && okB && sa.Rdev == sb.Rdev
}

func (v *validator) volumes(c *Config) {
	tiers := make([]string, len(c.Tiers))
	for i, t := range c.Tiers {
		tiers[i] = t.Name
	}
	names := make(map[string]string)
	for i, vol := range c.Volumes {
		p := path("volumes", i)
		v.name(at(p, "name"), vol.Name, CheckVolumeName, names)
		switch {
		case !v.given(at(p, "size")) && vol.Size == 0:
			v.faultf(at(p, "size"), "is required")
		case vol.Size <= 0:
			v.faultf(at(p, "size"), "must be above 0 (got %s)", vol.Size)
		case vol.Size%sectorSize != 0:
			v.faultf(at(p, "size"), "must be a multiple of %d bytes (got %s)", sectorSize, vol.Size)
		}
		v.check(at(p, "policy"), CheckPolicy(vol.Policy, tiers))
		if len(vol.AllowClients) > 64 {
			v.faultf(at(p, "allow_clients"), "must have at most 64 names (got %d)", len(vol.AllowClients))
		}
		for i, name := range vol.AllowClients {
			v.check(path(at(p, "allow_clients"), i), CheckClientName(name))
		}
		if vol.Reservation < 0 || vol.Reservation > vol.Size && vol.Size > 0 {
			v.faultf(at(p, "reservation"), "must be from 0 to the volume's size of %s (got %s)", vol.Size, vol.Reservation)
		}
		switch {
		case vol.Quota < 0 || vol.Quota == 0 && v.given(at(p, "quota")):
			v.faultf(at(p, "quota"), "must be above 0; leave it out for no limit (got %s)", vol.Quota)
		case vol.Quota > 0 && vol.Quota < units.Size(c.ExtentSize):
			v.faultf(at(p, "quota"), "must be at least an extent, %s (got %s)", c.ExtentSize, vol.Quota)
		case vol.Quota > 0 && vol.Quota < vol.Reservation:
			v.faultf(at(p, "quota"), "must not be less than the reservation of %s (got %s)", vol.Reservation, vol.Quota)
		}
	}
}

// name checks a required name, and that it is not in names, which maps each
// name to the path it was first found at.
func (v *validator) name(p, name string, check func(string) error, names map[string]string) {
	if name == "" && !v.given(p) {
		v.faultf(p, "is required")
		return
	}
	if err := check(name); err != nil {
		v.faultf(p, "%s", err)
		return
	}
	if first, twice := names[name]; twice {
		v.faultf(p, "must be unique (got %s, as in %s)", units.Quote(name), first)
		return
	}
	names[name] = p
}

func (v *validator) nbd(n *NBD) {
	if len(n.Listen) == 0 {
		v.faultf("nbd.listen", "must have at least one address")
	}
	for i, l := range n.Listen {
		v.listener(path("nbd.listen", i), l, n.TLS.Mode == TLSRequire || n.InsecureRemotePlaintext)
	}
	if n.DefaultExport != "" {
		v.check("nbd.default_export", CheckVolumeName(n.DefaultExport))
	}
	v.tls(&n.TLS)
	if n.HandshakeTimeout < units.Duration(time.Second) || n.HandshakeTimeout > units.Duration(time.Hour) {
		v.faultf("nbd.handshake_timeout", "must be from 1s to 1h (got %s)", n.HandshakeTimeout)
	}
	if n.SlowRequest != 0 && n.SlowRequest < units.Duration(100*time.Millisecond) || n.SlowRequest < 0 {
		v.faultf("nbd.slow_request", "must be at least 100ms, or 0s for none (got %s)", n.SlowRequest)
	}
	if n.MaxConnections < 1 || n.MaxConnections > 1<<20 {
		v.faultf("nbd.max_connections", "must be from 1 to %d (got %d)", 1<<20, n.MaxConnections)
	}
	if n.MaxInFlight < minInFlight || n.MaxInFlight > 1<<16 {
		v.faultf("nbd.max_in_flight", "must be from %d, which kernel clients count on, to %d (got %d)", minInFlight, 1<<16, n.MaxInFlight)
	}
}

// minInFlight is the queue depth of the Linux kernel's client, on each connection.
const minInFlight = 128

// listener checks an address; remote tells whether it may be one that other machines
// reach.
func (v *validator) listener(p string, l Listener, remote bool) {
	switch l.Network {
	case "unix":
		v.socket(p, l.Address)
	case "tcp":
		host, ok := v.hostPort(p, l.Address)
		if ok && !remote && !loopback(host) {
			v.faultf(p, "must be a loopback address such as 127.0.0.1, unless nbd.tls.mode is require, or nbd.insecure_remote_plaintext is true (got %s)", units.Quote(l.String()))
		}
	default:
		v.faultf(p, `must be "unix:/path" or "tcp:host:port" (got %s)`, units.Quote(l.String()))
	}
}

// hostPort checks a TCP address and returns its host.
func (v *validator) hostPort(p, address string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		v.faultf(p, "must have a host and a port from 0 to 65535, such as 127.0.0.1:10809 (got %s)", units.Quote(address))
	}
	return host, err == nil
}

func (v *validator) tls(t *TLS) {
	needed := t.Mode == TLSAllow || t.Mode == TLSRequire
	v.path("nbd.tls.cert", t.Cert, needed)
	v.path("nbd.tls.key", t.Key, needed)
	v.path("nbd.tls.client_ca", t.ClientCA, false)
	switch t.Mode {
	case TLSOff:
		// A certificate with the mode left out was surely meant to be used.
		if t.Cert+t.Key+t.ClientCA != "" && !v.given("nbd.tls.mode") {
			v.faultf("nbd.tls.mode", "must be given where there are certificates: off, allow or require")
		}
	case TLSAllow, TLSRequire:
	default:
		v.faultf("nbd.tls.mode", "must be off, allow or require (got %s)", units.Quote(string(t.Mode)))
	}
}

func (v *validator) heat(h *Heat) {
	for _, half := range []struct {
		key   string
		value units.Duration
	}{{"heat.short_half_life", h.ShortHalfLife}, {"heat.long_half_life", h.LongHalfLife}} {
		if half.value <= 0 {
			v.faultf(half.key, "must be above 0 (got %s)", half.value)
		}
	}
	if h.ShortHalfLife > h.LongHalfLife && h.LongHalfLife > 0 {
		v.faultf("heat.short_half_life", "must not be above long_half_life, %s (got %s)", h.LongHalfLife, h.ShortHalfLife)
	}
	if !(h.ShortWeight >= 0 && h.ShortWeight <= 1) { // NaN, too
		v.faultf("heat.short_weight", "must be from 0 to 1 (got %v)", h.ShortWeight)
	}
}

func (v *validator) relocation(c *Config) {
	r := &c.Relocation
	if r.Cycle.Std() < minCycle {
		v.faultf("relocation.cycle", "must be %s or more (got %s)", minCycle, r.Cycle)
	}
	if !(r.Hysteresis >= 0 && r.Hysteresis <= 1000) {
		v.faultf("relocation.hysteresis", "must be from 0%% to 1000%% (got %s)", r.Hysteresis)
	}
	if !(r.Headroom >= 0 && r.Headroom < 100) {
		v.faultf("relocation.headroom", "must be below 100%% (got %s)", r.Headroom)
	}

	// The size that auto stands for is not known before the devices are seen.
	extent, auto := units.Size(c.ExtentSize), ""
	if c.ExtentSize == 0 {
		extent, auto = maxAutoExtentSize, " at most"
	}
	// A move pays for two pieces more than the extent: what is written meanwhile is
	// copied again.
	least := extent + 2*min(extent, 128*units.KiB)
	b := &r.Budget
	if b.Rate <= 0 {
		v.faultf("relocation.budget.rate", "must be above 0; `tierctl relocation pause` stops relocation (got %s)", b.Rate)
	}
	if b.PerCycle < least {
		v.faultf("relocation.budget.per_cycle", "must hold the move of an extent, %s%s (got %s)", least, auto, b.PerCycle)
	}
	if perDay := "relocation.budget.per_day"; (b.PerDay != 0 || v.given(perDay)) && b.PerDay < least {
		v.faultf(perDay, "must hold the move of an extent, %s%s; leave it out for no limit (got %s)", least, auto, b.PerDay)
	}
	for i, w := range r.Windows {
		v.window(path("relocation.windows", i), &w)
	}
}

func (v *validator) window(p string, w *Window) {
	if w.Days == 0 || w.Days > EveryDay {
		v.faultf(at(p, "days"), "must be %s", dayWords)
	}
	// 00:00 is a time as good as any, so a missing one shows in the file only.
	for _, key := range []string{"start", "end"} {
		if v.source.lines != nil && !v.given(at(p, key)) {
			v.faultf(at(p, key), "is required")
		}
	}
	if w.Start < 0 || w.Start >= 24*60 {
		v.faultf(at(p, "start"), "must be from 00:00 to 23:59 (got %s)", w.Start)
	}
	if w.End < 0 || w.End > 24*60 {
		v.faultf(at(p, "end"), "must be from 00:00 to 24:00 (got %s)", w.End)
	}
	if w.Rate < 0 || w.Rate == 0 && v.given(at(p, "rate")) {
		v.faultf(at(p, "rate"), "must be above 0 (got %s)", w.Rate)
	}
}

func (v *validator) metrics(m *Metrics) {
	if m.Listen != "" {
		v.hostPort("metrics.listen", m.Listen)
	}
	v.path("metrics.web_config", m.WebConfig, false)
}

// path checks the path of a file.
func (v *validator) path(p, file string, required bool) {
	switch {
	case file == "" && required && !v.given(p):
		v.faultf(p, "is required")
	case file == "" && required:
		v.faultf(p, "must not be empty")
	case file == "":
	case strings.ContainsFunc(file, unicode.IsControl):
		v.faultf(p, "must not contain control characters (got %s)", units.Quote(file))
	case !filepath.IsAbs(file):
		v.faultf(p, "must be an absolute path (got %s)", units.Quote(file))
	}
}

// socket checks the path of a unix socket.
func (v *validator) socket(p, file string) {
	v.path(p, file, true)
	if len(file) > maxSocketPath {
		v.faultf(p, "must be at most %d bytes long, as the kernel wants it of sockets (got %d)", maxSocketPath, len(file))
	}
}

// sockets refuses two listeners at one address. Port 0 is never the same twice.
func (v *validator) sockets(c *Config) {
	seen := make(map[string]string)
	add := func(p, address string) {
		if strings.HasSuffix(address, ":0") {
			return
		}
		if first, twice := seen[address]; twice {
			v.faultf(p, "must be another address than %s (got %s)", first, units.Quote(address))
			return
		}
		seen[address] = p
	}
	for i, l := range c.NBD.Listen {
		address := l.Address
		if l.Network == "unix" {
			address = filepath.Clean(address)
		}
		add(path("nbd.listen", i), address)
	}
	if c.Metrics.Listen != "" {
		add("metrics.listen", c.Metrics.Listen)
	}
	add("admin.socket", filepath.Clean(c.Admin.Socket))
}
