package paper

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Result is all that follows from Inputs.
type Result struct {
	Inputs Inputs  `json:"inputs"`
	Values []Value `json:"values"` // in the order of the paper's argument
	Table3 []Row   `json:"table3"`
	Limits []Limit `json:"limits"`
}

// Value is one figure with its working.
type Value struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Working string  `json:"working"` // the formula with its numbers put in
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	// Printed is what the paper says; "" if it says nothing. Agrees tells whether Value
	// is that, to the digits printed.
	Printed string `json:"printed"`
	Agrees  *bool  `json:"agrees,omitempty"`
}

// Row is one column of the paper's Table 3: one array.
type Row struct {
	Name    string  `json:"name"`
	MissMS  float64 `json:"miss_ms"`  // of a read miss
	HitMS   float64 `json:"hit_ms"`   // of all else
	TotalMS float64 `json:"total_ms"` // of a second's requests
	MeanMS  float64 `json:"mean_ms"`
	Ratio   float64 `json:"ratio"` // to the tiered array
}

// Limit is one point in which the paper contradicts itself, or what it cannot say.
type Limit struct {
	Number int     `json:"number"`
	Text   string  `json:"text"`
	Values []Value `json:"values"`
}

// sheet collects values.
type sheet []Value

// add appends a value and returns it. printed is the paper's, or "".
func (s *sheet) add(id, name, unit string, v float64, printed, working string, args ...any) float64 {
	for i, a := range args {
		if f, ok := a.(float64); ok {
			args[i] = Number(f)
		}
	}
	val := Value{ID: id, Name: name, Working: fmt.Sprintf(working, args...), Value: v, Unit: unit, Printed: printed}
	if printed != "" {
		plain := strings.ReplaceAll(printed, ",", "")
		_, fraction, _ := strings.Cut(plain, ".")
		agrees := strconv.FormatFloat(v, 'f', len(fraction), 64) == plain
		val.Agrees = &agrees
	}
	*s = append(*s, val)
	return v
}

// Number prints a value as workings do: up to four digits after the point, with commas
// between thousands.
func Number(v float64) string {
	s := strconv.FormatFloat(round(math.Abs(v), 4), 'f', -1, 64)
	whole, fraction, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	if v < 0 {
		whole = "-" + whole
	}
	return whole
}

// model holds the figures that several steps need.
type model struct {
	Inputs
	writes, hits, misses float64   // a second
	service, residence   []float64 // of the two sets
	reads                []float64 // of the drives of each tier, a second
	times                []float64 // of the tiers, ms
	tiered               float64   // ms of a read miss, as the paper rounds it
	table                []Row
}

// mean returns the mean time of a request if a miss takes so long, and all else hit.
func (m *model) mean(miss, hit float64) float64 {
	return ((m.hits+m.writes)*hit + m.misses*miss) / m.IOPS
}

// Compute works everything out. The inputs must be valid.
func Compute(in Inputs) Result {
	m := &model{Inputs: in}
	var s sheet
	m.workload(&s)
	m.single(&s)
	m.tiers(&s)
	m.compare(&s)
	m.aside(&s)
	return Result{Inputs: in, Values: s, Table3: m.table, Limits: m.limits()}
}

// workload splits the requests (figure 6).
func (m *model) workload(s *sheet) {
	reads := s.add("reads", "reads", "1/s", math.Round(m.IOPS*m.ReadShare), "7,618", "%v x %v", m.IOPS, m.ReadShare)
	m.writes = s.add("writes", "writes", "1/s", math.Round(m.IOPS*(1-m.ReadShare)), "8,057", "%v x %v", m.IOPS, 1-m.ReadShare)
	m.misses = s.add("misses", "read misses", "1/s", math.Round(m.IOPS*m.ReadMissShare), "3,307", "%v x %v", m.IOPS, m.ReadMissShare)
	s.add("misses_of_reads", "read misses, of all reads", "%", 100*m.misses/reads, "43.4", "%v / %v", m.misses, reads)
	m.hits = s.add("hits", "read hits and sequential reads", "1/s", reads-m.misses, "4,311", "%v - %v", reads, m.misses)
	s.add("hits_of_all", "the same, of all requests", "%", 100*m.hits/m.IOPS, "27.5", "%v / %v", m.hits, m.IOPS)
}

// single works out the sets of one kind of drives (figure 8).
func (m *model) single(s *sheet) {
	printed := [][3]string{{"5.4", "55", "12.0"}, {"6.8", "72", "24.3"}}
	for i, d := range m.Single {
		id := fmt.Sprintf("config%d", i+1)
		ts := s.add(id+"_service", "T_S, "+d.Name, "ms", SeekRotate(d.SeekMS, d.RPM), printed[i][0], "%v + 60,000 / %v / 2", d.SeekMS, d.RPM)
		s.add(id+"_utilisation", "figure 8: utilisation, "+d.Name, "%", 100*d.Utilisation, printed[i][1], "given")
		tr := s.add(id+"_residence", "figure 8: T_R, "+d.Name, "ms", Residence(ts, d.Utilisation), printed[i][2], "%v / (1 - %v)", ts, d.Utilisation)
		m.service, m.residence = append(m.service, ts), append(m.residence, tr)
	}
}

// tiers works out the tiered array (figures 9 and 10).
func (m *model) tiers(s *sheet) {
	rt, reads, split := [3]string{"2.0", "10.0", "20.5"}, [3]string{"4,800", "4,680", "960"}, [3]string{"1,520", "1,482", "304"}
	notes := [3]string{"at most 2", "11", "22"}
	for i, t := range m.Tiers {
		s.add("read_ms_"+t.Name, "figure 9: read of one "+t.Name+" drive", "ms", t.ReadMS, rt[i], "read off; the plot notes %s", notes[i])
		m.times = append(m.times, t.ReadMS)
	}
	for i, t := range m.Tiers {
		m.reads = append(m.reads, s.add("drive_reads_"+t.Name, "figure 10: reads of all "+t.Name+" drives", "1/s", t.Reads(), reads[i], "%v x %d", t.ReadsPerDrive, t.Drives))
	}
	all := s.add("drive_reads", "figure 10: sum", "1/s", sum(m.reads), "10,440", "%v + %v + %v", m.reads[0], m.reads[1], m.reads[2])
	var products []float64
	for i, part := range Split(m.misses, m.reads) {
		part = s.add("split_"+m.Tiers[i].Name, "read misses on "+m.Tiers[i].Name+", cut to whole ones", "1/s", math.Trunc(part), split[i], "%v x %v / %v", m.misses, m.reads[i], all)
		products = append(products, part*m.times[i])
	}
	total := s.add("miss_total", "time of the read misses of a second", "ms", sum(products), "24,092", "%v + %v + %v", products[0], products[1], products[2])
	exact := s.add("miss_ms_unrounded", "read miss, FAST VP", "ms", total/m.misses, "", "%v / %v", total, m.misses)
	m.tiered = s.add("miss_ms", "read miss, FAST VP, as the paper goes on with it", "ms", round(exact, 1), "7.3", "%v", exact)
}

// compare makes Table 3. Times are rounded to a digit, as the paper does.
func (m *model) compare(s *sheet) {
	names := []string{"FAST VP", m.Single[0].Name, m.Single[1].Name}
	ids := []string{"tiered", "config1", "config2"}
	printed := [][3]string{{"48,877", "3.12", "1"}, {"64,420", "4.11", "1.32"}, {"105,096", "6.70", "2.15"}}
	for i, miss := range []float64{m.tiered, round(m.residence[0], 1), round(m.residence[1], 1)} {
		hits, writes := m.hits*m.HitMS, m.writes*m.HitMS
		r := Row{Name: names[i], MissMS: miss, HitMS: m.HitMS}
		r.TotalMS = s.add("total_"+ids[i], "Table 3: total, "+r.Name, "ms", hits+m.misses*miss+writes, printed[i][0], "%v x %v + %v x %v + %v x %v", m.hits, m.HitMS, m.misses, miss, m.writes, m.HitMS)
		r.MeanMS = s.add("mean_"+ids[i], "Table 3: mean, "+r.Name, "ms", r.TotalMS/m.IOPS, printed[i][1], "%v / %v", r.TotalMS, m.IOPS)
		first := r.TotalMS
		if i > 0 {
			first = m.table[0].TotalMS
		}
		r.Ratio = s.add("ratio_"+ids[i], "Table 3: ratio, "+r.Name, "", r.TotalMS/first, printed[i][2], "%v / %v", r.TotalMS, first)
		m.table = append(m.table, r)
	}
	s.add("inverse", "FAST VP to config 1", "", 1/m.table[1].Ratio, "0.76", "%v / %v", m.table[0].TotalMS, m.table[1].TotalMS)
	s.add("break_even", "utilisation from which config 1 is slower than FAST VP", "", max(0, 1-m.service[0]/m.tiered), "", "1 - %v / %v", m.service[0], m.tiered)
}

// Figures of the paper beside its argument, as its plots and text have them.
const (
	fig5SSD, fig5FC, fig5SATA = 850.0, 430.0, 100.0 // requests a second, mean of hours
	fig4FC, fig4SATA          = 12.0, -10.0         // TB from 2013-04-01 to 06-21
	homeTB, mailTB, miscTB    = 32.0, 30.0, 6.0
	raidData, raidDrives      = 6.0, 8.0 // RAID 6 as 6+2
)

// aside works out what the paper says beside that.
func (m *model) aside(s *sheet) {
	all := fig5SSD + fig5FC + fig5SATA
	s.add("fig5_ssd", "figure 5: requests served by SSD", "%", 100*fig5SSD/all, "62", "%v / (%v + %v + %v)", fig5SSD, fig5SSD, fig5FC, fig5SATA)
	moves := m.MovedDown + m.MovedUp
	s.add("tier_moves", "tier moves off-season, of all requests", "%", 100*moves/m.IOPS, "6.0", "(%v + %v) / %v", m.MovedDown, m.MovedUp, m.IOPS)
	s.add("fig4_net", "figure 4: new data on FC and SATA", "TB", fig4FC+fig4SATA, "2", "%v - %v", fig4FC, -fig4SATA)
	pool := s.add("pool", "pool", "TB", m.Tiers[0].PoolTB+m.Tiers[1].PoolTB+m.Tiers[2].PoolTB, "110", "%v + %v + %v", m.Tiers[0].PoolTB, m.Tiers[1].PoolTB, m.Tiers[2].PoolTB)
	s.add("unassigned", "of which unassigned", "TB", pool-homeTB-mailTB-miscTB, "42", "%v - %v - %v - %v", pool, homeTB, mailTB, miscTB)
}
