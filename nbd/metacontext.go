package nbd

import (
	"errors"
	"strings"

	"tierd/nbd/wire"
)

// A metaContext is a kind of state that BLOCK_STATUS tells of.
type metaContext uint32

// The contexts, in the order in which they are listed and told.
const (
	// contextAllocation is what is stored: a hole reads as zeroes.
	contextAllocation metaContext = iota
	// contextTier is the place of the tier that a range is on: 1 for the fastest;
	// 0: nothing is stored.
	contextTier
	contextCount
)

func (m metaContext) name() string { return [...]string{"base:allocation", "tierd:tier"}[m] }

// id is what the client knows the context by.
func (m metaContext) id() uint32 { return uint32(m) + 1 }

// state returns what the context says of a span.
func (m metaContext) state(s Span) uint32 {
	switch {
	case m == contextTier:
		return uint32(s.Tier)
	case m == contextAllocation && s.Hole:
		return wire.StateHole | wire.StateZero
	}
	return 0
}

// A selection is what a client chose by SET_META_CONTEXT. It counts for the export
// of that name alone.
type selection struct {
	export   string
	contexts []metaContext
}

// metaContexts answers LIST_META_CONTEXT and SET_META_CONTEXT. Whatever becomes of a
// SET, what was selected before is not any more.
func (hs *handshake) metaContexts(opt wire.Option, data []byte) {
	set := opt == wire.OptSetMetaContext
	if set {
		hs.selected = selection{}
	}
	if !hs.structured {
		hs.respond(opt, wire.RepErrInvalid, []byte("structured replies are needed first"))
		return
	}
	name, queries, err := wire.ParseMetaContext(data)
	switch {
	case errors.Is(err, wire.ErrNameTooLong):
		hs.respond(opt, wire.RepErrTooBig, []byte(err.Error()))
		return
	case err != nil:
		hs.respond(opt, wire.RepErrInvalid, []byte(err.Error()))
		return
	}
	if _, err := hs.lookUp(name); err != nil {
		hs.refuse(opt, name, err)
		return
	}
	var found []metaContext
	for m := range contextCount {
		if matches(m.name(), queries, !set) {
			found = append(found, m)
		}
	}
	for _, m := range found {
		id := m.id()
		if !set {
			id = 0 // means nothing in a list
		}
		hs.respond(opt, wire.RepMetaContext, wire.AppendContext(nil, id, m.name()))
	}
	if set {
		hs.selected = selection{name, found}
	}
	hs.respond(opt, wire.RepAck, nil)
}

// matches tells whether a context is asked for. In a list, a query that is a namespace
// alone stands for all of it, and no query for everything.
func matches(name string, queries []string, list bool) bool {
	if list && len(queries) == 0 {
		return true
	}
	for _, q := range queries {
		if q == name || list && strings.HasSuffix(q, ":") && strings.HasPrefix(name, q) {
			return true
		}
	}
	return false
}
