package tiering

import (
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// superblockOf returns the superblock of one member as the metadata describes it.
func superblockOf(s extentmap.State, id extent.BackingID, l ondisk.Layout, incarnation uint64) *ondisk.Superblock {
	sb := &ondisk.Superblock{
		Version: ondisk.FormatVersion, PoolID: s.Pool.ID, Backing: id, State: ondisk.BackingActive, Layout: l,
		Features: ondisk.Features(s.Pool.Features), Incarnation: incarnation, NextBacking: s.Pool.NextBacking,
		Commit: s.Pool.Commit,
	}
	for _, t := range s.Tiers {
		sb.Tiers = append(sb.Tiers, ondisk.TierRecord{ID: t.ID, Name: t.Name, Media: t.Media})
	}
	for _, m := range s.Members {
		if m.ID == id {
			sb.BackingUUID, sb.Tier = m.UUID, m.Tier
		}
		sb.Members = append(sb.Members, ondisk.MemberRecord{
			ID: m.ID, UUID: m.UUID, Tier: m.Tier, State: ondiskStates[m.State], Incarnation: m.Incarnation,
		})
	}
	return sb
}

var ondiskStates = map[extentmap.MemberState]ondisk.MemberState{
	extentmap.MemberOK:        ondisk.MemberOK,
	extentmap.MemberDraining:  ondisk.MemberDraining,
	extentmap.MemberFailed:    ondisk.MemberFailed,
	extentmap.MemberForgotten: ondisk.MemberForgotten,
	extentmap.MemberCreating:  ondisk.MemberCreating,
}

// volumeOf is the other way round: a volume as a volume table has it.
func volumeOf(v ondisk.VolumeRecord) extentmap.Volume {
	return extentmap.Volume{
		ID: v.ID, UUID: v.UUID, Name: v.Name, Size: v.Size, Policy: v.Policy, State: extentmap.VolumeState(v.State),
		Created: v.Created, ReadOnly: v.ReadOnly, Reservation: v.Reservation, Quota: v.Quota, OnFullWait: v.OnFullWait, Clients: v.Clients,
	}
}

// volumeTableOf returns the volume table of a backing as the metadata has it.
func volumeTableOf(s extentmap.State) ondisk.VolumeTable {
	t := ondisk.VolumeTable{Generation: s.Pool.VolumeGeneration, NextVolume: s.Pool.NextVolume}
	for _, v := range s.Volumes {
		state := ondisk.VolumeActive
		if v.State == extentmap.VolumeDeleting {
			state = ondisk.VolumeDeleting
		}
		t.Volumes = append(t.Volumes, ondisk.VolumeRecord{
			ID: v.ID, UUID: v.UUID, Name: v.Name, Size: v.Size, Policy: v.Policy, State: state,
			Created: v.Created, ReadOnly: v.ReadOnly,
			Reservation: v.Reservation, Quota: v.Quota, OnFullWait: v.OnFullWait, Clients: v.Clients,
		})
	}
	return t
}
