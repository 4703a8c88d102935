package nbd

import "context"

// A Device is what the server serves as an export. All methods are safe for
// concurrent use. Ranges have been checked against Size before they get here,
// and are not empty.
type Device interface {
	// Size returns the size in bytes; it does not change while the Device is open.
	Size() int64

	// TryRead fills p from off if no waiting for a device is needed, and
	// reports whether it did. It must not block.
	TryRead(p []byte, off int64) (ok bool)

	// ReadAt fills p from off.
	ReadAt(ctx context.Context, p []byte, off int64) error

	// BeginWrite, BeginTrim and BeginWriteZeroes put a change of [off, off+n)
	// in line behind every overlapping change begun before on any connection,
	// and return it, yet to be run. They never block. The server begins
	// changes in the order in which it parsed them, then runs them anywhere.
	BeginWrite(off, n int64) Mutation
	BeginTrim(off, n int64) Mutation
	// BeginWriteZeroes: noHole asks that the range keeps its space. With fast, Run
	// returns ErrNotSupported, with nothing changed, if zeroing the range would take
	// as long as writing it.
	BeginWriteZeroes(off, n int64, noHole, fast bool) Mutation

	// Span returns the longest run from off on that is in one state, up to off+n.
	// It must not block.
	Span(off, n int64) Span

	// Promote tells that the range will be needed soon. It returns without waiting
	// for what it brings about.
	Promote(ctx context.Context, off, n int64) error

	// Flush returns once every change answered before it was called, on any
	// connection, is durable.
	Flush(ctx context.Context) error

	// Close ends the use of the Device by this connection.
	Close() error
}

// A Mutation is a change that has its place in line. Run is called exactly
// once and releases the Mutation, whatever it returns.
type Mutation interface {
	// Run waits for its turn and makes the change; p is the payload of a
	// write, else nil. With fua the change is durable when Run returns nil.
	// If ctx ends before its turn, the change is not made and ctx's error is
	// returned.
	Run(ctx context.Context, p []byte, fua bool) error
}

// A Span is a run of bytes in one state.
type Span struct {
	Len  int64 // bytes, at least one
	Hole bool  // nothing is stored: reads as zeroes, and a write needs space
	Tier int   // where it is, 1 for the fastest tier; 0 for a hole
}

// Exports are the devices a Server can serve, by name.
type Exports interface {
	// List returns the exports in the order to show them in.
	List() []ExportInfo
	// Info returns the description of an export; name "" is the default
	// export. The error is ErrNoExport if there is none of that name.
	Info(name string) (ExportInfo, error)
	// Open returns the export for use by one connection.
	Open(name string) (Device, error)
}

// ExportInfo describes an export before it is opened.
type ExportInfo struct {
	Name        string
	Description string
	Size        int64
	ReadOnly    bool
	// Clients are the names in certificates that may use it; none: everybody may.
	// Clients on Unix sockets need no certificate: they are let in by file modes.
	Clients []string
	// PreferredBlock is the I/O size that works best, in bytes: a power of two
	// of at least 512.
	PreferredBlock uint32
}
