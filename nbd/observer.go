package nbd

import (
	"time"

	"tierd/nbd/wire"
)

// An Observer is told what happens in a Server, for metrics. Its methods are
// called from many goroutines, must not block and must not panic.
type Observer interface {
	// ConnAccepted is called when a listener returns a connection.
	ConnAccepted()
	// HandshakeFailed is called when a connection ends without having chosen an
	// export. The reason is one of the Reason constants.
	HandshakeFailed(reason string)
	// ConnOpened is called when a client has chosen an export. What it returns
	// is told about that connection from then on; nil if nothing is to be told.
	ConnOpened(export, remote string) ConnObserver
}

// A ConnObserver is told about one connection in the transmission phase.
type ConnObserver interface {
	// Request is called once for each request, when its outcome is known and
	// before it is written to the socket: the command, the length it named in
	// bytes, the time since it was read from the socket, and what is answered.
	Request(cmd wire.Cmd, n uint32, d time.Duration, errno wire.Errno)
	// Closed is called when the last reply is written or given up.
	Closed()
}

// Reasons of HandshakeFailed.
const (
	ReasonAborted  = "aborted"  // the client said ABORT
	ReasonHangup   = "hangup"   // the connection ended
	ReasonTimeout  = "timeout"  // Config.HandshakeTimeout passed
	ReasonProtocol = "protocol" // the client broke the protocol or a limit
	ReasonTLS      = "tls"      // the TLS handshake failed
	ReasonNoExport = "noexport" // EXPORT_NAME for something that is not there
	ReasonRefused  = "refused"  // EXPORT_NAME for something that the client may not use now, or that cannot be opened
	ReasonShutdown = "shutdown" // the server is going away
	ReasonLimit    = "limit"    // Config.MaxConns
	ReasonPanic    = "panic"    // Exports panicked
)
