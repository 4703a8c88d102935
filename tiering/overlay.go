package tiering

import (
	"context"
	"fmt"
	"io"
	"os"

	"tierd/pkg/backing"
	"tierd/tiering/extentmap"
)

// overlay is what a dry run would have written to a backing, by number of the block
// of 4 KiB. It is kept in memory: at most 32 bytes for each slot whose table entry
// is wrong, where the tables are damaged all over.
type overlay map[int64][]byte

const overlayBlock = 4096

// overlayStore is a Store that is only read, with an overlay in front of it. What
// Repair does not use is left to the Store, which refuses to change anything. It is
// not safe for concurrent use.
type overlayStore struct {
	backing.Store
	over overlay
}

// TryReadAt sends the caller to ReadAt.
func (s overlayStore) TryReadAt([]byte, int64) bool { return false }

func (s overlayStore) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.Store.ReadAt(ctx, p, off); err != nil {
		return err
	}
	for n := off / overlayBlock; n*overlayBlock < off+int64(len(p)); n++ {
		b, at := s.over[n], n*overlayBlock-off
		if b != nil && at >= 0 {
			copy(p[at:], b)
		} else if b != nil {
			copy(p, b[-at:])
		}
	}
	return nil
}

func (s overlayStore) WriteAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > s.Size() {
		return backing.ErrOutOfRange
	}
	for len(p) > 0 {
		n, from := off/overlayBlock, off%overlayBlock
		b := s.over[n]
		if b == nil {
			b = make([]byte, min(overlayBlock, s.Size()-n*overlayBlock))
			if err := s.Store.ReadAt(ctx, b, n*overlayBlock); err != nil {
				return err
			}
			s.over[n] = b
		}
		done := copy(b[from:], p)
		p, off = p[done:], off+int64(done)
	}
	return nil
}

// Sync has nothing to do.
func (s overlayStore) Sync(context.Context) error { return nil }

// openScratch opens a copy of a metadata file that nobody else sees and that is gone
// with the process. The file must be locked.
func openScratch(path string) (*extentmap.DB, error) {
	fail := func(err error) (*extentmap.DB, error) {
		return nil, fmt.Errorf("copy metadata for a dry run: %w", err)
	}
	from, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer from.Close()
	to, err := os.CreateTemp("", "tierd-dry-run-")
	if err != nil {
		return fail(err)
	}
	_, err = io.Copy(to, from)
	if rerr := os.Remove(to.Name()); err == nil {
		err = rerr
	}
	if err != nil {
		to.Close()
		return fail(err)
	}
	db, err := extentmap.Open(path, extentmap.Options{Slack: -1,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return to, nil }})
	if err != nil {
		return fail(err)
	}
	return db, nil
}
