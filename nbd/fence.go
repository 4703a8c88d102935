package nbd

import (
	"encoding/binary"
	"errors"
	"time"

	"tierd/nbd/wire"
)

// fenceTime is how long a handshake waits for older connections of its client, and
// fenceLook how often it looks meanwhile whether it is to end.
const (
	fenceTime = 10 * time.Second
	fenceLook = 100 * time.Millisecond
)

// An identity is what a client that attaches again calls itself (wire.OptClient). A
// connection of a later generation fences those of earlier ones: what they have not
// begun is never begun, since the client may have sent it again here, and something
// else behind it.
type identity struct {
	client     [wire.ClientIDSize]byte
	generation uint64
	given      bool
}

// errStale refuses a connection of a generation that has been superseded.
var errStale = errors.New("a later connection of this client is there already")

// errNotFenced refuses a connection whose predecessors cannot be stopped.
var errNotFenced = errors.New("an earlier connection of this client does not end")

// clientID answers the option by which a client names itself.
func (hs *handshake) clientID(data []byte) {
	if len(data) != wire.ClientSize {
		hs.respond(wire.OptClient, wire.RepErrInvalid, []byte("an id of 16 bytes and a generation of 8 are needed"))
		return
	}
	hs.identity = identity{generation: binary.BigEndian.Uint64(data[wire.ClientIDSize:]), given: true}
	copy(hs.identity.client[:], data)
	hs.respond(wire.OptClient, wire.RepAck, nil)
}

// fence stops the connections of earlier generations to the export that c is about to
// serve, and returns when none of them can begin another request. What they have begun
// keeps its place in line before all that comes over c. It waits for patience at most,
// and for fenceTime. The claim that c makes holds until unclaim.
func (c *conn) fence(id identity, export string, patience time.Duration) error {
	if !id.given {
		return nil
	}
	earlier, err := c.claim(id, export)
	if err != nil {
		return err
	}
	timeout := time.After(min(patience, fenceTime))
	look := time.NewTicker(fenceLook)
	defer look.Stop()
	for _, o := range earlier {
		o.abort()
		for halted := false; !halted; {
			select {
			case <-o.halted:
				halted = true
			case <-timeout:
				return errNotFenced
			case <-look.C:
				if c.stopping.Load() {
					return ErrShutdown
				}
			}
		}
	}
	if len(earlier) > 0 {
		c.srv.log.Info("earlier connections of a client fenced", "export", export, "remote", c.remote, "connections", len(earlier))
	}
	return nil
}

// claim notes who c is and what it is about to serve, and returns the connections to
// that of earlier generations. The error is errStale if there is one of a later.
func (c *conn) claim(id identity, export string) (earlier []*conn, err error) {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.conns {
		if o == c || !o.identity.given || o.identity.client != id.client || o.claimed != export {
			continue
		}
		if o.identity.generation > id.generation {
			return nil, errStale
		}
		if o.identity.generation < id.generation {
			earlier = append(earlier, o)
		}
	}
	c.identity, c.claimed = id, export
	return earlier, nil
}

// unclaim takes back the claim of a connection that does not serve what it claimed.
func (c *conn) unclaim() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.identity, c.claimed = identity{}, ""
}
