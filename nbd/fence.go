package nbd

import (
	"encoding/binary"
	"errors"
	"time"

	"tierd/nbd/wire"
)

// fenceTime is how long a handshake waits for older connections of its client.
const fenceTime = 10 * time.Second

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
// keeps its place in line before all that comes over c.
func (s *Server) fence(c *conn, id identity, export string) error {
	if !id.given {
		return nil
	}
	var earlier []*conn
	s.mu.Lock()
	for o := range s.conns {
		if o == c || !o.identity.given || o.identity.client != id.client || o.claimed != export {
			continue
		}
		if o.identity.generation > id.generation {
			s.mu.Unlock()
			return errStale
		}
		if o.identity.generation < id.generation {
			earlier = append(earlier, o)
		}
	}
	c.identity, c.claimed = id, export
	s.mu.Unlock()

	timer := time.NewTimer(fenceTime)
	defer timer.Stop()
	for _, o := range earlier {
		o.abort()
		select {
		case <-o.halted:
		case <-timer.C:
			return errNotFenced
		}
	}
	if len(earlier) > 0 {
		s.log.Info("earlier connections of a client fenced", "export", export, "remote", c.remote, "connections", len(earlier))
	}
	return nil
}
