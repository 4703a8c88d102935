package wire

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Errors of the parsers of option data.
var (
	// ErrMalformed is returned when lengths inside the data contradict each
	// other or its end, or when a string is not valid text.
	ErrMalformed = errors.New("malformed option data")
	// ErrNameTooLong is returned for a name of more than MaxName bytes.
	ErrNameTooLong = errors.New("export name too long")
)

// CheckName returns nil if name may name an export: at most MaxName bytes of
// UTF-8 without NUL. The empty name is valid; it means the default export.
func CheckName(name string) error {
	if len(name) > MaxName {
		return ErrNameTooLong
	}
	if !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return ErrMalformed
	}
	return nil
}

// AppendInfoRequest appends the data of an INFO or GO option to b.
func AppendInfoRequest(b []byte, name string, infos ...Info) []byte {
	b = be.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint16(b, uint16(len(infos)))
	for _, i := range infos {
		b = be.AppendUint16(b, i)
	}
	return b
}

// ParseInfoRequest reads the data of an INFO or GO option: the name, and the
// bytes of the info requests, two for each. The error is ErrMalformed or
// ErrNameTooLong.
func ParseInfoRequest(data []byte) (name string, infos []byte, err error) {
	if len(data) < 6 {
		return "", nil, ErrMalformed
	}
	n := uint64(be.Uint32(data))
	if n > uint64(len(data)-6) {
		return "", nil, ErrMalformed
	}
	infos = data[4+n+2:]
	if len(infos) != 2*int(be.Uint16(data[4+n:])) {
		return "", nil, ErrMalformed
	}
	if n > MaxName {
		return "", nil, ErrNameTooLong
	}
	name = string(data[4 : 4+n])
	return name, infos, CheckName(name)
}

// AsksFor tells whether infos, as returned by ParseInfoRequest, contains i.
func AsksFor(infos []byte, i Info) bool {
	for ; len(infos) >= 2; infos = infos[2:] {
		if be.Uint16(infos) == i {
			return true
		}
	}
	return false
}

// AppendServer appends the data of a REP_SERVER to b.
func AppendServer(b []byte, name, description string) []byte {
	b = be.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	return append(b, description...)
}

// ParseServer reads the data of a REP_SERVER. The error is ErrMalformed.
func ParseServer(data []byte) (name, description string, err error) {
	if len(data) < 4 {
		return "", "", ErrMalformed
	}
	n := uint64(be.Uint32(data))
	if n > uint64(len(data)-4) {
		return "", "", ErrMalformed
	}
	return string(data[4 : 4+n]), string(data[4+n:]), nil
}

// AppendMetaContext appends the data of a LIST_META_CONTEXT or SET_META_CONTEXT
// option to b.
func AppendMetaContext(b []byte, name string, queries ...string) []byte {
	b = be.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint32(b, uint32(len(queries)))
	for _, q := range queries {
		b = be.AppendUint32(b, uint32(len(q)))
		b = append(b, q...)
	}
	return b
}

// ParseMetaContext reads the data of a LIST_META_CONTEXT or SET_META_CONTEXT option.
// The error is ErrMalformed or ErrNameTooLong.
func ParseMetaContext(data []byte) (name string, queries []string, err error) {
	cut := func() (string, bool) {
		if len(data) < 4 || uint64(be.Uint32(data)) > uint64(len(data)-4) {
			return "", false
		}
		end := 4 + be.Uint32(data)
		s := string(data[4:end])
		data = data[end:]
		return s, true
	}
	name, ok := cut()
	if !ok || len(data) < 4 {
		return "", nil, ErrMalformed
	}
	count := be.Uint32(data)
	data = data[4:]
	for ; count > 0; count-- {
		q, ok := cut()
		if !ok || !utf8.ValidString(q) || strings.IndexByte(q, 0) >= 0 {
			return "", nil, ErrMalformed
		}
		queries = append(queries, q)
	}
	if len(data) > 0 {
		return "", nil, ErrMalformed
	}
	return name, queries, CheckName(name)
}

// AppendClient appends the data of an OptClient to b.
func AppendClient(b []byte, id [ClientIDSize]byte, generation uint64) []byte {
	return be.AppendUint64(append(b, id[:]...), generation)
}

// AppendContext appends the data of a REP_META_CONTEXT to b.
func AppendContext(b []byte, id uint32, name string) []byte {
	return append(be.AppendUint32(b, id), name...)
}

// IsError tells whether an answer to an option is an error.
func IsError(r Reply) bool { return r&RepErrBit != 0 }
