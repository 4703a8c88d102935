package recordfs

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// server is the file system. A node's number is that of its folder, in the upper
// half, and that of its file in the lower; numbers are not used again, so that what
// the kernel remembers is never wrong.
type server struct {
	fuse.RawFileSystem
	counter *int64

	mu      sync.Mutex
	folders map[uint64]*folder
	byName  map[string]uint64
	last    uint64 // number of the last folder
}

// folder is one world.
type folder struct {
	base  *Journal
	names map[string]uint64 // as it is now
	files map[uint64][]byte
	last  uint64 // number of the last file
	log   []Event
	named map[uint64]string // the last name of each file
}

const folderShift = 32

func node(folder, file uint64) uint64 { return folder<<folderShift | file }
func split(node uint64) (folder, file uint64) {
	return node >> folderShift, node & (1<<folderShift - 1)
}

func newServer(counter *int64) *server {
	return &server{RawFileSystem: fuse.NewDefaultRawFileSystem(), counter: counter, folders: make(map[uint64]*folder), byName: make(map[string]uint64)}
}

func (s *server) next() int64 { return atomic.AddInt64(s.counter, 1) }

// load makes a folder, or makes it anew.
func (s *server) load(name string, j *Journal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &folder{base: j, names: maps.Clone(j.Names), files: make(map[uint64][]byte), log: j.Events, named: make(map[uint64]string)}
	if f.names == nil {
		f.names = make(map[string]uint64)
	}
	for n, data := range j.Files {
		f.files[n] = bytes.Clone(data)
		f.last = max(f.last, n)
	}
	for _, e := range j.Events {
		f.last = max(f.last, e.File)
		if e.ofContent() {
			apply(f.files, e)
		} else {
			applyName(f.names, e)
		}
	}
	for name, n := range f.names {
		f.named[n] = name
	}
	s.dropLocked(name)
	s.last++
	s.byName[name], s.folders[s.last] = s.last, f
}

func (s *server) dropLocked(name string) {
	if n, ok := s.byName[name]; ok {
		delete(s.byName, name)
		delete(s.folders, n)
	}
}

// journal returns the journal of a folder.
func (s *server) journal(name string) *Journal {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.folders[s.byName[name]]
	if f == nil {
		return nil
	}
	return &Journal{Names: f.base.Names, Files: f.base.Files, Events: slices.Clone(f.log)}
}

// record appends an event; s.mu is held.
func (s *server) record(f *folder, e Event) int64 {
	e.Seq = s.next()
	if e.Name == "" {
		e.Name = f.named[e.File]
	}
	switch {
	case e.ofContent():
		apply(f.files, e)
	case e.ofNames():
		applyName(f.names, e)
		f.named[e.File] = e.Name
		if e.Kind == Rename {
			f.named[e.File] = e.To
		}
	}
	f.log = append(f.log, e)
	return e.Seq
}

// timeout is how long the kernel may believe what it knows: nobody else changes
// anything.
const timeout = 3600

func (s *server) attr(id uint64, f *folder, out *fuse.Attr) {
	out.Ino, out.Nlink, out.Blksize = id, 1, 4096
	_, file := split(id)
	if file == 0 {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o700, 2
		return
	}
	out.Mode, out.Size = syscall.S_IFREG|0o600, uint64(len(f.files[file]))
	out.Blocks = (out.Size + 511) / 512
}

func (s *server) entry(id uint64, f *folder, out *fuse.EntryOut) {
	out.NodeId, out.EntryValid, out.AttrValid = id, timeout, timeout
	s.attr(id, f, &out.Attr)
}

// at returns the folder of a node.
func (s *server) at(id uint64) (*folder, uint64) {
	n, file := split(id)
	return s.folders[n], file
}

func (s *server) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.NodeId == fuse.FUSE_ROOT_ID {
		n, ok := s.byName[name]
		if !ok {
			return fuse.ENOENT
		}
		s.entry(node(n, 0), nil, out)
		out.EntryValid = 0 // a folder may be loaded anew
		return fuse.OK
	}
	f, _ := s.at(h.NodeId)
	if f == nil {
		return fuse.ENOENT
	}
	file, ok := f.names[name]
	if !ok {
		return fuse.ENOENT
	}
	n, _ := split(h.NodeId)
	s.entry(node(n, file), f, out)
	return fuse.OK
}

func (s *server) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.NodeId == fuse.FUSE_ROOT_ID {
		out.Mode, out.Nlink, out.Ino = syscall.S_IFDIR|0o700, 2, fuse.FUSE_ROOT_ID
		return fuse.OK
	}
	f, _ := s.at(in.NodeId)
	if f == nil {
		return fuse.ENOENT
	}
	out.AttrValid = timeout
	s.attr(in.NodeId, f, &out.Attr)
	return fuse.OK
}

func (s *server) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(in.NodeId)
	if f == nil || file == 0 {
		return fuse.ENOENT
	}
	if size, ok := in.GetSize(); ok {
		s.record(f, Event{Kind: Truncate, File: file, Off: int64(size)})
	}
	out.AttrValid = timeout
	s.attr(in.NodeId, f, &out.Attr)
	return fuse.OK
}

func (s *server) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(in.NodeId)
	if f == nil || file != 0 {
		return fuse.ENOENT
	}
	if _, ok := f.names[name]; ok {
		return fuse.Status(syscall.EEXIST)
	}
	f.last++
	f.files[f.last] = nil
	s.record(f, Event{Kind: Create, File: f.last, Name: name})
	n, _ := split(in.NodeId)
	s.entry(node(n, f.last), f, &out.EntryOut)
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func (s *server) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, _ := s.at(h.NodeId)
	if f == nil {
		return fuse.ENOENT
	}
	file, ok := f.names[name]
	if !ok {
		return fuse.ENOENT
	}
	s.record(f, Event{Kind: Unlink, File: file, Name: name})
	return fuse.OK
}

// renameNoReplace is RENAME_NOREPLACE of renameat2.
const renameNoReplace = 1

func (s *server) Rename(_ <-chan struct{}, in *fuse.RenameIn, name, to string) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, _ := s.at(in.NodeId)
	if f == nil || in.Newdir != in.NodeId {
		return fuse.EINVAL
	}
	file, ok := f.names[name]
	if !ok {
		return fuse.ENOENT
	}
	if _, taken := f.names[to]; taken && in.Flags&renameNoReplace != 0 {
		return fuse.Status(syscall.EEXIST)
	}
	s.record(f, Event{Kind: Rename, File: file, Name: name, To: to})
	return fuse.OK
}

func (s *server) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func (s *server) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(in.NodeId)
	if f == nil {
		return nil, fuse.EIO
	}
	data := f.files[file]
	if in.Offset >= uint64(len(data)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, data[in.Offset:])]), fuse.OK
}

func (s *server) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(in.NodeId)
	if f == nil {
		return 0, fuse.EIO
	}
	s.record(f, Event{Kind: Write, File: file, Off: int64(in.Offset), Data: bytes.Clone(data)})
	return uint32(len(data)), fuse.OK
}

func (s *server) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.sync(in.NodeId, SyncBegan, SyncEnded)
}

func (s *server) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.sync(in.NodeId, DirSyncBegan, DirSyncEnded)
}

// sync records both ends of a sync, with a turn for others in between.
func (s *server) sync(id uint64, began, ended Kind) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(id)
	if f == nil {
		return fuse.EIO
	}
	n := s.record(f, Event{Kind: began, File: file})
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
	s.record(f, Event{Kind: ended, File: file, Began: n})
	return fuse.OK
}

func (s *server) OpenDir(_ <-chan struct{}, _ *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

func (s *server) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, file := s.at(in.NodeId)
	if f == nil || file != 0 {
		return fuse.OK // the root shows nothing
	}
	n, _ := split(in.NodeId)
	for i, name := range slices.Sorted(maps.Keys(f.names)) {
		if uint64(i) >= in.Offset && !out.AddDirEntry(fuse.DirEntry{Name: name, Mode: syscall.S_IFREG, Ino: node(n, f.names[name]), Off: uint64(i + 1)}) {
			break
		}
	}
	return fuse.OK
}

func (s *server) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Blocks, out.Bfree, out.Bavail, out.NameLen = 4096, 1<<20, 1<<20, 1<<20, 255
	return fuse.OK
}
