// Package order tests, through the real NBD server with a real pool behind it, that what
// overlaps takes effect in the order in which it arrived, on whatever connections, and
// that a FLUSH covers what was answered on all of them. That something has arrived is
// seen at the server; nothing is left to the speed of the machine.
package order
