package paper

import "math"

// limits works out in what the paper contradicts itself, and what it cannot say.
func (m *model) limits() []Limit {
	var list []Limit
	limit := func(text string, work func(*sheet)) {
		s := sheet{}
		work(&s)
		list = append(list, Limit{Number: len(list) + 1, Text: text, Values: s})
	}
	limit("The time of the read misses is summed over parts that were cut to whole numbers, and rounded before Table 3. Exact figures change the third digit, and no ratio.", m.exact)
	limit("Abstract and section 5 say that FAST VP improves the mean to its ratio to config 1; the conclusion says that it is shortened by about that much. Taken as a reduction it is much less.", func(s *sheet) {
		s.add("reduction", "reduction of the mean", "%", 100*(1-1/m.table[1].Ratio), "", "1 - %v / %v", m.table[0].TotalMS, m.table[1].TotalMS)
	})
	limit("T_R = T_S / (1 - rho) is credited to Little's law, but is the residence time of M/M/1; Little's law is N = X R, and holds for any queue. Transfer and controller time are left out of T_S.", m.little)
	limit("Methods are mixed: the times of the tiers are measured, those of the alternatives modelled. The same law needs a higher utilisation of the FC tier than its reads make; writes and tier moves make the rest.", m.mixed)
	limit("Drives read more often than clients miss, so drive reads serve only as a split. Tier moves are among them, and more so on FC and SATA; without them FAST VP does better.", m.moves)
	limit("The FC drives hold SAN volumes beside the pool: they have more room than the text gives the tier (figure 2 has the larger figure). With the pool's share of the drives the split changes.", m.poolShare)
	limit("Drives and tiers do not add up: SATA has less than its drives hold as RAID 6 (6+2), SSD less than either RAID 5; spares are not described.", m.capacities)
	limit("The sets \"of the same capacity\" are larger than the pool. With as many drives as the pool needs and the same load, they are busier, and FAST VP would look better.", m.sameCapacity)
	limit("Utilisations and service times of the two sets imply different loads of the same work.", m.crossCheck)
	limit("The SSD share is of drive reads at the peak in figure 10, and of hourly mean requests in figure 5: moments of different load.", func(s *sheet) {
		s.add("ssd_peak", "SSD, of drive reads at the peak", "%", 100*m.reads[0]/sum(m.reads), "", "%v / %v", m.reads[0], sum(m.reads))
		all := fig5SSD + fig5FC + fig5SATA
		s.add("ssd_hourly", "SSD, of requests in figure 5", "%", 100*fig5SSD/all, "62", "%v / %v", fig5SSD, all)
		s.add("fig5_total", "requests in figure 5", "1/s", all, "", "%v + %v + %v", fig5SSD, fig5FC, fig5SATA)
	})
	limit("The throughput is printed as MB/s, and is MiB/s. Section 4 says that requests are almost fixed at 10 KB.", func(s *sheet) {
		s.add("throughput_binary", "throughput, MiB/s if KB are KiB", "MiB/s", m.IOPS*m.MeanKB/1024, "177", "%v x %v / 1,024", m.IOPS, m.MeanKB)
		s.add("throughput_decimal", "throughput, decimal", "MB/s", m.IOPS*m.MeanKB/1000, "", "%v x %v / 1,000", m.IOPS, m.MeanKB)
	})
	limit("The time of a hit is an assumption. A shorter one favours FAST VP, as the paper says of its own.", m.sensitivity)
	return list
}

func (m *model) exact(s *sheet) {
	miss := Weighted(m.reads, m.times)
	s.add("exact_total", "time of the read misses, not cut", "ms", m.misses*miss, "", "%v x %v", m.misses, miss)
	s.add("exact_miss", "read miss, FAST VP", "ms", miss, "", "(%v x %v + %v x %v + %v x %v) / %v", m.reads[0], m.times[0], m.reads[1], m.times[1], m.reads[2], m.times[2], sum(m.reads))
	first := s.add("exact_mean_tiered", "mean, FAST VP", "ms", m.mean(miss, m.HitMS), "3.12", "((%v + %v) x %v + %v x %v) / %v", m.hits, m.writes, m.HitMS, m.misses, miss, m.IOPS)
	for i, id := range []string{"config1", "config2"} {
		mean := s.add("exact_mean_"+id, "mean, "+m.Single[i].Name, "ms", m.mean(m.residence[i], m.HitMS), []string{"4.11", "6.70"}[i], "((%v + %v) x %v + %v x %v) / %v", m.hits, m.writes, m.HitMS, m.misses, m.residence[i], m.IOPS)
		s.add("exact_ratio_"+id, "ratio", "", mean/first, []string{"1.32", "2.15"}[i], "%v / %v", mean, first)
	}
}

func (m *model) little(s *sheet) {
	for i, d := range m.Single {
		perSecond := d.Utilisation / m.service[i] * 1000
		id := []string{"config1", "config2"}[i]
		s.add("little_"+id, "N = X R, "+d.Name, "", InSystem(perSecond, m.residence[i]), "", "%v/s x %v ms", perSecond, m.residence[i])
		s.add("mm1_"+id, "rho / (1 - rho), M/M/1", "", d.Utilisation/(1-d.Utilisation), "", "%v / (1 - %v)", d.Utilisation, d.Utilisation)
	}
}

func (m *model) mixed(s *sheet) {
	fc, ts := m.Tiers[1], m.service[0]
	s.add("fc_rho_needed", "utilisation that the law needs for the FC tier's time", "", 1-ts/fc.ReadMS, "", "1 - %v / %v", ts, fc.ReadMS)
	rho := s.add("fc_rho_reads", "utilisation that its reads make", "", fc.ReadsPerDrive*ts/1000, "", "%v x %v / 1,000", fc.ReadsPerDrive, ts)
	if rho < 1 {
		s.add("fc_ms_reads", "time at that utilisation", "ms", Residence(ts, rho), "", "%v / (1 - %v)", ts, rho)
	}
}

func (m *model) moves(s *sheet) {
	all, moved := sum(m.reads), m.MovedUp+m.MovedDown
	s.add("drive_to_host", "drive reads to read misses", "", all/m.misses, "", "%v / %v", all, m.misses)
	s.add("moves_of_drive_reads", "tier moves, of drive reads", "%", 100*moved/all, "", "%v / %v", moved, all)
	s.add("moves_of_lower", "tier moves, of the reads of FC and SATA", "%", 100*moved/(m.reads[1]+m.reads[2]), "", "%v / (%v + %v)", moved, m.reads[1], m.reads[2])
	less := []float64{m.reads[0], m.reads[1] - m.MovedDown, m.reads[2] - m.MovedUp}
	miss := s.add("miss_without_moves", "read miss without tier moves", "ms", Weighted(less, m.times), "", "(%v x %v + %v x %v + %v x %v) / %v", less[0], m.times[0], less[1], m.times[1], less[2], m.times[2], sum(less))
	mean := s.add("mean_without_moves", "mean without tier moves", "ms", m.mean(miss, m.HitMS), "", "((%v + %v) x %v + %v x %v) / %v", m.hits, m.writes, m.HitMS, m.misses, miss, m.IOPS)
	s.add("ratio_without_moves", "ratio to config 1", "", mean/m.table[1].MeanMS, "", "%v / %v", mean, m.table[1].MeanMS)
}

func (m *model) poolShare(s *sheet) {
	fc := m.Tiers[1]
	tb := s.add("fc_capacity", "FC drives as RAID 6 (6+2)", "TB", float64(fc.Drives)*fc.DriveTB*raidData/raidDrives, "54", "%d x %v x %v / %v", fc.Drives, fc.DriveTB, raidData, raidDrives)
	drives := s.add("fc_pool_drives", "drives for the pool's part", "", float64(fc.Drives)*fc.PoolTB/tb, "", "%d x %v / %v", fc.Drives, fc.PoolTB, tb)
	reads := []float64{m.reads[0], fc.ReadsPerDrive * drives, m.reads[2]}
	s.add("miss_pool_share", "read miss with these", "ms", Weighted(reads, m.times), "", "(%v x %v + %v x %v + %v x %v) / %v", reads[0], m.times[0], reads[1], m.times[1], reads[2], m.times[2], sum(reads))
}

func (m *model) capacities(s *sheet) {
	ssd, sata := m.Tiers[0], m.Tiers[2]
	tb := s.add("sata_capacity", "SATA drives as RAID 6 (6+2)", "TB", float64(sata.Drives)*sata.DriveTB*raidData/raidDrives, "60", "%d x %v x %v / %v", sata.Drives, sata.DriveTB, raidData, raidDrives)
	s.add("sata_capacity_binary", "the same", "TiB", tb*1e12/(1<<40), "", "%v x 10^12 / 2^40", tb)
	for _, r := range []struct {
		id, name string
		data     float64
	}{{"ssd_capacity_3_1", "SSD as RAID 5 (3+1)", 3}, {"ssd_capacity_7_1", "SSD as RAID 5 (7+1)", 7}} {
		s.add(r.id, r.name, "TB", float64(ssd.Drives)*ssd.DriveTB*r.data/(r.data+1), "2", "%d x %v x %v / %v", ssd.Drives, ssd.DriveTB, r.data, r.data+1)
	}
}

func (m *model) sameCapacity(s *sheet) {
	pool := m.Tiers[0].PoolTB + m.Tiers[1].PoolTB + m.Tiers[2].PoolTB
	for i, d := range m.Single {
		id := []string{"config1", "config2"}[i]
		each := d.DriveTB * raidData / raidDrives
		s.add("capacity_"+id, "capacity, "+d.Name, "TB", float64(d.Drives)*each, "", "%d x %v x %v / %v", d.Drives, d.DriveTB, raidData, raidDrives)
		drives := s.add("drives_"+id, "drives for the pool", "", math.Ceil(round(pool/each, 6)), "", "%v / %v, rounded up", pool, each)
		rho := s.add("rho_same_"+id, "utilisation of these", "", d.Utilisation*float64(d.Drives)/drives, "", "%v x %d / %v", d.Utilisation, d.Drives, drives)
		if rho >= 1 {
			continue // they could not do it at all
		}
		tr := s.add("residence_same_"+id, "T_R", "ms", Residence(m.service[i], rho), "", "%v / (1 - %v)", m.service[i], rho)
		mean := s.add("mean_same_"+id, "mean", "ms", m.mean(tr, m.HitMS), "", "((%v + %v) x %v + %v x %v) / %v", m.hits, m.writes, m.HitMS, m.misses, tr, m.IOPS)
		s.add("ratio_same_"+id, "FAST VP to that", "", m.table[0].MeanMS/mean, "", "%v / %v", m.table[0].MeanMS, mean)
	}
}

func (m *model) crossCheck(s *sheet) {
	var load [2]float64
	for i, d := range m.Single {
		load[i] = s.add([]string{"load_config1", "load_config2"}[i], "operations of the drives, "+d.Name, "1/s", d.Utilisation/m.service[i]*1000*float64(d.Drives), "", "%v / %v ms x %d", d.Utilisation, m.service[i], d.Drives)
	}
	s.add("rho_equal_load", "utilisation of config 2 at the load of config 1", "", load[0]*m.service[1]/1000/float64(m.Single[1].Drives), "", "%v x %v ms / %d", load[0], m.service[1], m.Single[1].Drives)
}

// sensitivityMS are the times of a hit for which the last limit is worked out.
var sensitivityMS = []float64{0, 0.2, 0.5, 1, 2, 3}

func (m *model) sensitivity(s *sheet) {
	for _, hit := range sensitivityMS {
		tiered := m.mean(m.tiered, hit)
		single := m.mean(m.table[1].MissMS, hit)
		at := Number(hit)
		s.add("mean_tiered_hit_"+at, "mean, FAST VP, hits at "+at+" ms", "ms", tiered, "", "(%v x %v + %v x %v) / %v", m.hits+m.writes, hit, m.misses, m.tiered, m.IOPS)
		s.add("mean_config1_hit_"+at, "mean, "+m.Single[0].Name, "ms", single, "", "(%v x %v + %v x %v) / %v", m.hits+m.writes, hit, m.misses, m.table[1].MissMS, m.IOPS)
		s.add("ratio_hit_"+at, "ratio", "", tiered/single, "", "%v / %v", tiered, single)
	}
}
