// Package clock tells the time and waits for it, for real or by hand. Code
// that must be told the time takes a Clock; tests give it a Fake and move it.
package clock
