package tiering

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// aside is a folder beside the metadata that holds what Repair replaced, so that
// nothing is destroyed. It is made when there is something to keep. index.jsonl has
// a line for each thing; what is large has a file of its own.
type aside struct {
	prefix string // path of the folder without its number
	dry    bool   // count only

	dir   string // "" until there is something in it
	index *os.File
	bytes int64 // kept, or to be kept
}

// errUnread is wrapped by the error of what cannot be kept because it cannot be read.
var errUnread = errors.New("what is there cannot be kept")

// asideItem is a line of the index.
type asideItem struct {
	What   string `json:"what"`
	Where  string `json:"where"`
	Offset int64  `json:"offset,omitempty"` // on the backing, bytes
	Data   []byte `json:"data,omitempty"`   // what was there, trailing zeroes left out
	File   string `json:"file,omitempty"`   // that has the data, in this folder
	Record any    `json:"record,omitempty"`
}

func (a *aside) open() error {
	if a.dir != "" || a.dry {
		return nil
	}
	for n := 1; ; n++ {
		dir := fmt.Sprintf("%s%d", a.prefix, n)
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("make folder for what is replaced: %w", err)
		}
		f, err := os.OpenFile(filepath.Join(dir, "index.jsonl"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("keep what is replaced: %w", err)
		}
		a.dir, a.index = dir, f
		return nil
	}
}

// keep adds an item to the index.
func (a *aside) keep(i asideItem) error {
	a.bytes += int64(len(i.Data))
	if a.dry {
		return nil
	}
	if err := a.open(); err != nil {
		return err
	}
	b, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("keep what is replaced: %w", err)
	}
	if _, err := a.index.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("keep what is replaced: %w", err)
	}
	return nil
}

// keepSlot copies the content of a slot into a file of its own. A slot of zeroes
// has nothing to be kept.
func (a *aside) keepSlot(ctx context.Context, b *checkedBacking, s extent.Slot, size int64, what string) error {
	off := b.sb.Layout.SlotOffset(s)
	p := make([]byte, size)
	if err := b.store.ReadAt(ctx, p, off); err != nil {
		return fmt.Errorf("%w: slot %d: %w", errUnread, s, err)
	}
	if allZero(p) {
		return nil
	}
	a.bytes += size
	if a.dry {
		return nil
	}
	if err := a.open(); err != nil {
		return err
	}
	name := fmt.Sprintf("backing-%d-slot-%d", b.m.ID, s)
	if err := writeSynced(filepath.Join(a.dir, name), bytes.NewReader(p)); err != nil {
		return err
	}
	return a.keep(asideItem{What: what, Where: b.spec.Path, Offset: off, File: name})
}

// keepFile copies a file.
func (a *aside) keepFile(path, what string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("keep %s: %w", path, err)
	}
	defer f.Close()
	if a.dry {
		return nil
	}
	if err := a.open(); err != nil {
		return err
	}
	name := filepath.Base(path)
	if err := writeSynced(filepath.Join(a.dir, name), f); err != nil {
		return err
	}
	return a.keep(asideItem{What: what, Where: path, File: name})
}

// writeSynced makes or overwrites a file. An earlier try of the same repair may have
// left half of it.
func writeSynced(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep what is replaced: %w", err)
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keep what is replaced: %w", err)
	}
	return nil
}

// sync makes durable what has been kept. It comes before what replaces it.
func (a *aside) sync() error {
	if a.dir == "" {
		return nil
	}
	if err := a.index.Sync(); err != nil {
		return fmt.Errorf("keep what is replaced: %w", err)
	}
	for _, dir := range []string{a.dir, filepath.Dir(a.dir)} {
		if err := backing.SyncFolder(dir); err != nil {
			return fmt.Errorf("keep what is replaced: %w", err)
		}
	}
	return nil
}

func (a *aside) close() {
	if a.index != nil {
		_ = a.index.Close()
	}
}

// keepBytes returns the function that keeps n bytes at off of the backing.
func (b *checkedBacking) keepBytes(off, n int64, what string) func(context.Context, *aside) error {
	return func(ctx context.Context, a *aside) error {
		return keepRange(ctx, a, b.store, b.spec.Path, off, n, what)
	}
}

func keepRange(ctx context.Context, a *aside, st backing.Store, path string, off, n int64, what string) error {
	n = min(n, st.Size()-off)
	p := make([]byte, max(n, 0))
	if err := st.ReadAt(ctx, p, off); err != nil {
		return fmt.Errorf("%w: %s: %w", errUnread, what, err)
	}
	p = bytes.TrimRight(p, "\x00")
	if len(p) == 0 {
		return nil
	}
	return a.keep(asideItem{What: what, Where: path, Offset: off, Data: p})
}
