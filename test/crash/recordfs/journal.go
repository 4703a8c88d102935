package recordfs

import (
	"maps"
	"math/rand"

	"tierd/pkg/backing/crashstore"
)

// Kind says what an Event is.
type Kind uint8

// The kinds of events.
const (
	Create    Kind = iota + 1 // of Name
	Write                     // of Data at Off of Name
	Truncate                  // of Name to Off bytes
	Unlink                    // of Name
	Rename                    // of Name to To
	SyncBegan                 // of Name
	SyncEnded                 // of what Name had when the sync of number Began began
	DirSyncBegan
	DirSyncEnded
)

func (k Kind) String() string {
	return [...]string{"", "create", "write", "truncate", "unlink", "rename", "sync began", "sync ended", "folder sync began", "folder sync ended"}[k]
}

// Event is one entry of a Journal.
type Event struct {
	Seq   int64
	Kind  Kind
	File  uint64 // number of the file
	Name  string // its name at the time, or the last it had
	To    string
	Off   int64
	Data  []byte
	Began int64
}

func (e Event) ofContent() bool { return e.Kind == Write || e.Kind == Truncate }
func (e Event) ofNames() bool   { return e.Kind == Create || e.Kind == Unlink || e.Kind == Rename }

// Journal is what happened to a folder: what was durable in it at first, and the
// events since.
type Journal struct {
	Names  map[string]uint64
	Files  map[uint64][]byte
	Events []Event
}

// Of returns the journal of a folder with durable files in which nothing happened.
func Of(files map[string][]byte) *Journal {
	j := &Journal{Names: make(map[string]uint64), Files: make(map[uint64][]byte)}
	for name, data := range files {
		n := uint64(len(j.Names) + 1)
		j.Names[name], j.Files[n] = n, data
	}
	return j
}

// KillAt returns what is there after the process died right after event n: the
// same folder, where what was unsynced still is.
func (j *Journal) KillAt(n int64) *Journal {
	k := &Journal{Names: j.Names, Files: j.Files}
	for _, e := range j.Events {
		if e.Seq <= n {
			k.Events = append(k.Events, e)
		}
	}
	return k
}

// CrashAt returns the files that are there after the power failed right after
// event n.
func (j *Journal) CrashAt(n int64, c crashstore.Cut) *Journal {
	rng := rand.New(rand.NewSource(c.Seed))
	content, names := j.durableAt(n)
	image := &Journal{Names: maps.Clone(j.Names), Files: maps.Clone(j.Files)}
	copied := make(map[uint64]bool)
	for _, e := range j.Events {
		if e.Seq > n {
			break
		}
		switch {
		case e.ofContent():
			if !copied[e.File] {
				image.Files[e.File] = append([]byte(nil), image.Files[e.File]...)
				copied[e.File] = true
			}
			if e.Seq < content[e.File] {
				apply(image.Files, e)
			} else {
				applyPart(image.Files, e, c, rng)
			}
		case e.ofNames():
			if e.Seq < names || rng.Float64() < c.Keep {
				applyName(image.Names, e)
			}
		}
	}
	// The same files, by number in order of their names, in which nothing is left
	// that has no name.
	files := make(map[string][]byte)
	for name, f := range image.Names {
		files[name] = image.Files[f]
	}
	return Of(files)
}

// UnsyncedAt returns how many changes a power cut right after event n may take
// back.
func (j *Journal) UnsyncedAt(n int64) int {
	content, names := j.durableAt(n)
	unsynced := 0
	for _, e := range j.Events {
		if e.Seq <= n && (e.ofContent() && e.Seq >= content[e.File] || e.ofNames() && e.Seq >= names) {
			unsynced++
		}
	}
	return unsynced
}

// durableAt returns, for instant n, the number before which changes of each file,
// and changes of names, are durable.
func (j *Journal) durableAt(n int64) (content map[uint64]int64, names int64) {
	content = make(map[uint64]int64)
	for _, e := range j.Events {
		switch {
		case e.Seq > n:
			return content, names
		case e.Kind == SyncEnded:
			content[e.File] = max(content[e.File], e.Began)
		case e.Kind == DirSyncEnded:
			names = max(names, e.Began)
		}
	}
	return content, names
}

// apply makes a change of content.
func apply(files map[uint64][]byte, e Event) {
	data := files[e.File]
	if e.Kind == Truncate {
		files[e.File] = resize(data, e.Off)
		return
	}
	if end := e.Off + int64(len(e.Data)); end > int64(len(data)) {
		data = resize(data, end)
	}
	copy(data[e.Off:], e.Data)
	files[e.File] = data
}

// applyPart makes what of an unsynced change arrived. A file may have become longer
// without the bytes that made it so.
func applyPart(files map[uint64][]byte, e Event, c crashstore.Cut, rng *rand.Rand) {
	if e.Kind == Truncate {
		if rng.Float64() < c.Keep {
			apply(files, e)
		}
		return
	}
	c.Arrived(rng, e.Off, int64(len(e.Data)), func(from, to int64) {
		apply(files, Event{Kind: Write, File: e.File, Off: from, Data: e.Data[from-e.Off : to-e.Off]})
	})
	if end := e.Off + int64(len(e.Data)); end > int64(len(files[e.File])) && rng.Float64() < c.Keep {
		apply(files, Event{Kind: Truncate, File: e.File, Off: end})
	}
}

func resize(data []byte, n int64) []byte {
	if n <= int64(len(data)) {
		return data[:n:n]
	}
	return append(data[:len(data):len(data)], make([]byte, n-int64(len(data)))...)
}

func applyName(names map[string]uint64, e Event) {
	switch e.Kind {
	case Create:
		names[e.Name] = e.File
	case Unlink:
		delete(names, e.Name)
	case Rename:
		delete(names, e.Name)
		names[e.To] = e.File
	}
}
