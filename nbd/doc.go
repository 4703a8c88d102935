// Package nbd serves Devices to clients of the Network Block Device protocol.
// It knows nothing about what a Device is made of.
//
//	srv := nbd.NewServer(nbd.Config{Exports: exports})
//	go srv.Serve(ctx, listener)      // any number of listeners, Unix or TCP
//	...
//	err := srv.Shutdown(ctx)         // answers what is in flight, then closes
//
// # What is served
//
// The fixed newstyle handshake with NO_ZEROES, and the options EXPORT_NAME,
// ABORT, LIST, INFO, GO, STARTTLS, STRUCTURED_REPLY, LIST_META_CONTEXT and
// SET_META_CONTEXT, and one of ours, wire.OptClient (see fence.go). Any other option is answered ERR_UNSUP, with the connection in sync. The Exports
// are asked anew in each handshake, so a client sees a size that changed since the
// last connection; a Device is opened when a client chooses it and at no other time.
//
// The commands READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES and BLOCK_STATUS,
// with FUA on all, DF on READ, NO_HOLE and FAST_ZERO on WRITE_ZEROES, REQ_ONE on
// BLOCK_STATUS; replies come in any order. Requests may have any offset and any
// length up to 32 MiB (those without a payload: to 4 GiB); the advertised minimum
// block is one byte. The flags are SEND_FLUSH, SEND_FUA, SEND_CACHE, SEND_TRIM,
// SEND_WRITE_ZEROES, SEND_FAST_ZERO and CAN_MULTI_CONN, or READ_ONLY in place of the
// changes; SEND_DF after STRUCTURED_REPLY. CAN_MULTI_CONN is a promise that the
// Device keeps: a FLUSH covers what was answered on any connection.
//
// After STRUCTURED_REPLY, READ and BLOCK_STATUS are answered in chunks, errors with
// their place; all else has no payload and stays with simple replies. What Device.Span
// tells as a hole is sent as one: at most 64 chunks a READ, the last then being data.
// BLOCK_STATUS tells of at most 4096 extents in each of the contexts
//
//	base:allocation  holes, which read as zeroes
//	tierd:tier       where data is: 1 the fastest tier, 2 the next; 0 for a hole
//
//	refused with      what
//	EINVAL            unknown command or flag, length 0, READ or WRITE over the limit,
//	                  FLUSH of a range, BLOCK_STATUS without a context, and what is
//	                  past the end, but for
//	ENOSPC            WRITE or WRITE_ZEROES past the end
//	EOVERFLOW         READ with DF over the limit
//	ENOTSUP           FAST_ZERO that would not be fast
//	EPERM             a change of a read-only export
//	ESHUTDOWN         what had not had its turn when the server could wait no longer
//	closing           wrong magic, unknown client flags, a WRITE of over 64 MiB, and
//	                  handshakes over 30 s, 4 MiB or 20,000 options
//
// The payload of a WRITE that is refused is read and thrown away. Errors of a
// Device become wire errors in errnoOf alone. A panic of a Device is an EIO for
// that request, a log line, a count, and the end of that connection.
//
// # Who is served
//
// NBD knows no users. A Unix socket is protected by its mode. With TLS, a client is
// known by the common name of its certificate, and an export may be for some names
// alone (ExportInfo.Clients): the others do not see it in LIST and get ERR_POLICY; a
// client on a Unix socket needs no name. What was negotiated before STARTTLS is
// forgotten; where TLS is required, nothing but ABORT is answered before it.
//
// # A connection: leader and follower
//
// One goroutine, the leader, reads as many requests at once as the socket holds,
// and serves what it can by itself: reads that Device.TryRead answers, straight
// into the output buffer, and short changes, straight from the input buffer. It
// writes its replies with one system call, when the input holds no further whole
// request, or when there are 64 KiB of them. So a deep queue of hits costs one
// read and one write for all, and nothing is allocated, locked or handed over.
//
// Workers do the rest: misses, FLUSH, FUA, and all that is long. Only a miss that
// is alone on its connection is read by the leader too.
//
// Whether a change will block cannot be told beforehand. So the leader says that
// it begins one (conn.state: busy, with a number), and that it is done. The
// watchdog, one for the server, looks at busy connections every 500 us; a leader
// found twice in the same call has its connection taken away (busy to handed, by
// compare and swap) and a follower becomes leader: it copies the rest of the input
// into a buffer of its own, since the blocked call still uses the old one, writes
// the replies that are finished, and goes on. When the blocked call returns, its
// goroutine finds the state changed, and ends as a worker does: it queues its
// reply and touches nothing of the leader's. For the next 128 changes and misses
// such a connection uses workers at once.
//
// Invariants:
//
//  1. A change is begun (Device.BeginX) by the leader, in the order of the
//     requests, with its payload complete and room for it in all limits; and it is
//     run exactly once, also when the client is gone: Run then returns the error
//     of its context, and its place in line is free.
//  2. A reply that is queued gets written, whatever else happens on the
//     connection. Whoever writes says so (conn.writing) under conn.mu, and unsays
//     it under the same lock only with the queue seen empty; whoever queues a reply
//     and finds nobody writing writes. The leader never waits, in the socket or for
//     room, with finished replies in its own buffer: it writes them first, and if
//     it is blocked in a call, its follower does.
//  3. What a client can make the server hold is bounded: by requests and bytes in
//     flight per connection, by bytes for all connections, and by 1 MiB of replies
//     behind a socket that takes no more. At a limit the leader stops reading
//     requests; replies never wait for a limit, so limits cannot deadlock. A request
//     leaves the limits when its reply is written. A small request that is alone on
//     its connection passes the limit of the whole server.
//  4. Waiting clients cost a goroutine and no buffer.
//  5. After reading has paused for over a second, a client that has hung up gets
//     none of its remaining requests run: it may have sent them again elsewhere.
//
// # How a connection ends
//
// DISC: what is in flight is run and answered. Hang-up or a broken socket: changes
// that have not had their turn are dropped, the others are run, nothing is
// answered. Shutdown, and a panic: no more is read; what was read whole is run and
// answered. A client that connects again sends the rest once more, and no file system
// gets an error for a restart, as it would if the rest were answered ESHUTDOWN. When
// Shutdown can wait no longer, what has not had its turn is answered so. In each case the Device is closed when the last of its requests is done.
//
// # Locks
//
// Server.mu before conn.mu before budget.mu; watchdog.mu before workers.mu. No
// lock is held during a call of a Device, of Exports or of the socket (but to set
// a deadline).
package nbd
