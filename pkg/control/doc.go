// Package control is the administrator's protocol: JSON over HTTP on a unix
// socket, spoken by tierctl and answered by tierd.
//
// # Model
//
// Service is everything an administrator can ask of a running daemon. The
// daemon implements it, NewServer puts it on a socket, and a Client is the same
// Service on the other side:
//
//	srv := control.NewServer(service, logger)
//	go srv.Serve(listener)           // the daemon
//
//	c := control.Dial("/run/tierd/admin.sock")
//	status, err := c.PoolStatus(ctx) // tierctl
//
// Each method is one route: POST /v1/<method in kebab-case>, with the request
// as the body and the answer as the reply's body, so that curl is enough of a
// client:
//
//	curl --unix-socket /run/tierd/admin.sock -d '{}' http://tierd/v1/pool-status
//
// A recording (Recorder) is answered with its bytes, as they come, instead of JSON. A
// reply that is cut off was not ended in order.
//
// # Stability
//
// Field names are snake_case and say their unit; sizes are bytes, times are
// RFC 3339, durations are seconds, a list within a reply may be null if it is
// empty. Fields are added and never change meaning.
// A server refuses request fields that it does not know: an option that were
// ignored could do harm. A client skips reply fields that it does not know.
//
// # Errors
//
// A failed request is answered with {"error": ..., "hint": ..., "code": ...}
// and becomes an *Error again on the client's side, so that
// errors.Is(err, control.ErrNotFound) holds on both.
//
// # Trust
//
// Whoever may open the socket may do everything: the socket's owner and mode
// are the access control, set by the daemon. Requests are limited in size and
// time all the same, so that a stray client does no harm.
package control
