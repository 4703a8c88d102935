package faultfs

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"tierd/test/fuseproc"
)

const name = "faultfs"

type request struct {
	Set    bool // else: tell the hits
	Faults []Fault
}

type answer struct {
	Hits  []int
	Bytes []int64
}

// Main serves and does not return if the process was started for that. A TestMain
// calls it before anything else.
func Main() { fuseproc.Main(name, serve) }

func serve(mount string, args []string) (*fuse.Server, func(request) answer, error) {
	folder := args[0]
	var st syscall.Stat_t
	if err := syscall.Stat(folder, &st); err != nil {
		return nil, nil, err
	}
	data := &fs.LoopbackRoot{Path: folder, Dev: uint64(st.Dev)}
	root := &node{LoopbackNode: &fs.LoopbackNode{RootData: data}, faults: new(faults)}
	data.RootNode = root
	srv, err := fs.Mount(mount, root, &fs.Options{MountOptions: fuseproc.Options(name)})
	return srv, func(r request) answer {
		var a answer
		a.Hits, a.Bytes = root.faults.hits()
		if r.Set {
			root.faults.set(r.Faults)
			forget(root, r.Faults)
		}
		return a
	}, err
}

// forget empties the page cache of the files whose reads are to fail.
func forget(root *node, list []Fault) {
	for _, f := range list {
		if f.Op&Read == 0 {
			continue
		}
		for name, child := range root.Children() {
			if f.Name == "" || f.Name == name {
				_ = child.NotifyContent(0, 0)
			}
		}
	}
}

// FS is a mounted faultfs. It is safe for concurrent use.
type FS struct {
	folder string
	proc   *fuseproc.Process
}

// Start mounts a new file system below folder. fuseproc.ErrUnavailable says that this
// machine cannot.
func Start(folder string) (*FS, error) {
	f := &FS{folder: filepath.Join(folder, "healthy")}
	mount := filepath.Join(folder, "faulty")
	for _, dir := range []string{mount, f.folder} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	var err error
	f.proc, err = fuseproc.Start(name, mount, []string{f.folder})
	return f, err
}

// Path returns the path of a file as it can fail.
func (f *FS) Path(name string) string { return filepath.Join(f.proc.Mount, name) }

// Healthy returns the path of the same file as it cannot.
func (f *FS) Healthy(name string) string { return filepath.Join(f.folder, name) }

// Set replaces the faults in force; without any, all is well again. Operations that
// a fault delays go on.
func (f *FS) Set(list ...Fault) error {
	return f.proc.Ask(request{Set: true, Faults: list}, new(answer))
}

// Hits returns how often each of the faults in force has struck.
func (f *FS) Hits() ([]int, error) {
	var a answer
	err := f.proc.Ask(request{}, &a)
	return a.Hits, err
}

// Bytes returns how many bytes each of the faults in force has struck. A fault without
// a consequence counts, and does nothing else.
func (f *FS) Bytes() ([]int64, error) {
	var a answer
	err := f.proc.Ask(request{}, &a)
	return a.Bytes, err
}

// Close unmounts the file system and ends its process. What has files of it open
// gets errors.
func (f *FS) Close() error { return f.proc.Close() }
