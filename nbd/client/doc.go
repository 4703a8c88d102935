// Package client speaks NBD to a server: many goroutines, or one with a deep
// queue, share a connection.
//
// Dial connects, negotiates with GO (EXPORT_NAME where a server knows nothing
// newer) and returns a Client. ReadAt, WriteAt, Flush, Trim and WriteZeroes
// wait for their answer. Queue and Submit do not: they take a Request that the
// caller owns, and call its Done when the answer is there.
//
// # Model
//
//	Queue ---> pending buffer ---> socket        one goroutine at a time sends
//	             (under mu)                      what all have queued meanwhile
//	socket ---> readLoop ---> slot table ---> Done
//
// A cookie is an index into the slot table with a generation above it, so an
// answer finds its Request without hashing, and an answer that nobody asked for
// is noticed. Nothing is allocated for a request once the table and the buffers
// have grown to the depth in use.
//
// Whoever queues tries to send at once and never blocks in it: what the socket
// does not take is left to sendLoop. So readLoop, where Done runs and queues
// the next request, always goes on reading, and a server that stops reading
// until its answers are taken cannot lock up with us. readLoop sends once for
// all answers it found in its buffer, which makes a queue of depth 32 cost a
// 32nd of a system call for each request.
//
// # Invariants
//
//   - Done is called exactly once for each Request that Queue or Submit accepted,
//     with no lock held, by readLoop or by whoever found the connection dead.
//   - The bytes of a Request belong to the Client until Done. A payload above 16 KiB
//     is sent from where it is, so readLoop, before it calls Done, waits for the
//     sender's system call to return that took the last of its bytes; a server
//     that answers has read them, so that wait is short.
//   - After the connection died, every outstanding and every later request fails
//     with ErrDisconnected; a Client does not reconnect.
//
// Lock order: there is one lock, Client.mu.
//
// # Not spoken
//
// Structured replies, block status, resizing.
package client
