package crash

import (
	"slices"
	"strings"

	"tierd/pkg/backing/crashstore"
	"tierd/test/crash/recordfs"
	"tierd/tiering/ondisk"
)

// point is a crash point: an instant, and what happened last before it.
type point struct {
	at   int64
	step string
}

// points returns the crash points of a run, from instant from on, in order.
func (im *image) points(sh *shape, from, to int64) []point {
	paths := make(map[int]string)
	for p, d := range im.at {
		paths[d.index] = p
	}
	var all []point
	for _, e := range im.disks.Events() {
		if e.Seq > from && e.Seq <= to {
			all = append(all, point{e.Seq, diskStep(sh.layouts[paths[e.Store]], e)})
		}
	}
	for _, e := range im.files.Events {
		if e.Seq > from && e.Seq <= to {
			all = append(all, point{e.Seq, fileStep(e)})
		}
	}
	slices.SortFunc(all, func(a, b point) int { return int(a.at - b.at) })
	return all
}

// diskStep names an event of a backing by what lies there.
func diskStep(l ondisk.Layout, e crashstore.Event) string {
	if e.Kind == crashstore.SyncBegan || e.Kind == crashstore.SyncEnded {
		return "backing " + e.Kind.String()
	}
	what := "other"
	switch off := e.Off; {
	case off >= l.EndSuperblock || off >= l.FrontSuperblock && off < l.FrontSuperblock+l.SuperblockArea:
		what = "superblock"
	case off >= l.DataOffset:
		what = "data"
	case off >= l.SlotTableOffset:
		what = "slot table"
	case off >= l.VolumeTableOffset[0]:
		what = "volume table"
	case off >= l.StampOffset[0]:
		what = "stamp"
	}
	return what + " " + e.Kind.String()
}

// fileStep names an event of a file beside the pool.
func fileStep(e recordfs.Event) string {
	what := "metadata"
	switch {
	case e.Kind == recordfs.DirSyncBegan || e.Kind == recordfs.DirSyncEnded:
		return e.Kind.String()
	case strings.HasSuffix(e.Name, ".log"):
		what = "staged log"
	case strings.Contains(e.Name, ".heat"):
		what = "heat"
	case strings.Contains(e.Name, ".budget"):
		what = "budget"
	case e.Kind == recordfs.Write && e.Off < 2*block:
		what = "metadata root" // bbolt's two meta pages
	case e.Kind == recordfs.Write:
		what = "metadata page"
	}
	return what + " " + e.Kind.String()
}
