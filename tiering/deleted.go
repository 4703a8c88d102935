package tiering

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// lookout looks whether the files of the pool are still where the next start will
// look for them. What is written to a file without a name is gone with the process.
type lookout struct {
	metadata, log os.FileInfo // as at the start; nil: not looked at
	told          map[string]bool
}

func newLookout(o Options) *lookout {
	l := &lookout{told: make(map[string]bool)}
	l.metadata, _ = os.Stat(o.Metadata)
	l.log, _ = os.Stat(stagedLogPath(o.Metadata))
	return l
}

// look suspects the backings whose files were deleted, so that their data is moved to
// others, and keeps warnings for the status. One look runs at a time.
func (p *Pool) look() {
	l := p.lookout
	var warnings []string
	warn := func(path, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		warnings = append(warnings, text)
		if !l.told[path] {
			l.told[path] = true
			p.log.Error(text)
		}
	}
	if path := p.opts.Metadata; gone(path, l.metadata) {
		warn(path, "metadata %s were deleted or replaced while they are in use: what is committed is lost when tierd ends; stop it, and run tierctl pool rebuild", path)
	}
	if path := stagedLogPath(p.opts.Metadata); gone(path, l.log) {
		warn(path, "staged log %s was deleted or replaced while it is in use: answered writes that are not flushed do not survive a kill; restart tierd", path)
	}
	p.eachMember(func(b *member) {
		if b.deleted == nil || b.missing || !b.deleted() {
			return
		}
		b.suspect(symptomError, "its file was deleted: the data on it lives as long as tierd runs")
		warn(b.path, "the file of backing %s was deleted or replaced: the data on it lives as long as tierd runs, and is moved to other backings that have room; do not stop tierd before tierctl backing drain %d has ended", b.path, b.id)
	})
	p.unnamed.Store(&warnings)
}

// gone reports whether what was at path is not there any more.
func gone(path string, was os.FileInfo) bool {
	if was == nil {
		return false
	}
	now, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(was, now)
}
