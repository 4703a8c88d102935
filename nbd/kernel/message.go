package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The commands of the family.
const (
	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3
	cmdLinkDead    = 4
	cmdStatus      = 5
)

// The attributes of a command, and of what is nested in them.
const (
	attrIndex       = 1
	attrSize        = 2
	attrBlockSize   = 3
	attrTimeout     = 4
	attrServerFlags = 5
	attrSockets     = 7
	attrDeadTimeout = 8
	attrDevices     = 9
	attrBackend     = 10

	attrSocket    = 1 // in attrSockets
	attrSocketFD  = 1 // in attrSocket
	attrDevice    = 1 // in attrDevices
	attrDevIndex  = 1 // in attrDevice
	attrConnected = 2 // likewise
)

const headerSize = unix.NLMSG_HDRLEN + unix.GENL_HDRLEN

var errMalformed = errors.New("malformed netlink message")

var ne = binary.NativeEndian

// appendAttr appends an attribute, padded to four bytes.
func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = ne.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(value)))
	b = ne.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, ne.AppendUint32(nil, v))
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	return appendAttr(b, typ, ne.AppendUint64(nil, v))
}

func appendString(b []byte, typ uint16, s string) []byte {
	return appendAttr(b, typ, append([]byte(s), 0))
}

// appendSockets appends the list of sockets.
func appendSockets(b []byte, sockets []int) []byte {
	var list []byte
	for _, fd := range sockets {
		list = appendAttr(list, attrSocket|unix.NLA_F_NESTED, appendUint32(nil, attrSocketFD, uint32(fd)))
	}
	return appendAttr(b, attrSockets|unix.NLA_F_NESTED, list)
}

// request returns a message to a family.
func request(family uint16, cmd uint8, seq uint32, attrs []byte) []byte {
	b := ne.AppendUint32(nil, uint32(headerSize+len(attrs)))
	b = ne.AppendUint16(b, family)
	b = ne.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = ne.AppendUint32(b, seq)
	b = ne.AppendUint32(b, 0)
	b = append(b, cmd, 1, 0, 0)
	return append(b, attrs...)
}

// A message is one of those in a datagram.
type message struct {
	typ  uint16
	seq  uint32
	body []byte
}

// nextMessage takes the first message off b.
func nextMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return m, nil, errMalformed
	}
	n := uint64(ne.Uint32(b))
	if n < unix.NLMSG_HDRLEN || n > uint64(len(b)) {
		return m, nil, errMalformed
	}
	m = message{typ: ne.Uint16(b[4:]), seq: ne.Uint32(b[8:]), body: b[unix.NLMSG_HDRLEN:n]}
	return m, b[min((n+3)&^3, uint64(len(b))):], nil
}

// genl returns the command of a message to or from a family, and its attributes.
func (m message) genl() (cmd uint8, attrs []byte, err error) {
	if len(m.body) < unix.GENL_HDRLEN {
		return 0, nil, errMalformed
	}
	return m.body[0], m.body[unix.GENL_HDRLEN:], nil
}

// eachAttr calls fn for the attributes in b.
func eachAttr(b []byte, fn func(typ uint16, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < unix.NLA_HDRLEN {
			return errMalformed
		}
		n := int(ne.Uint16(b))
		if n < unix.NLA_HDRLEN || n > len(b) {
			return errMalformed
		}
		if err := fn(ne.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.NLA_HDRLEN:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

func parseUint32(v []byte) (uint32, error) {
	if len(v) < 4 {
		return 0, errMalformed
	}
	return ne.Uint32(v), nil
}

// parseFamily reads the answer of the controller: the number of the family, and of its
// group named group.
func parseFamily(attrs []byte, group string) (family uint16, groupID uint32, err error) {
	err = eachAttr(attrs, func(typ uint16, v []byte) error {
		switch {
		case typ == unix.CTRL_ATTR_FAMILY_ID && len(v) >= 2:
			family = ne.Uint16(v)
		case typ == unix.CTRL_ATTR_MCAST_GROUPS:
			return eachAttr(v, func(_ uint16, g []byte) error {
				var id uint32
				var name string
				err := eachAttr(g, func(typ uint16, v []byte) (err error) {
					switch typ {
					case unix.CTRL_ATTR_MCAST_GRP_ID:
						id, err = parseUint32(v)
					case unix.CTRL_ATTR_MCAST_GRP_NAME:
						name = unix.ByteSliceToString(v)
					}
					return err
				})
				if name == group {
					groupID = id
				}
				return err
			})
		}
		return nil
	})
	if err == nil && family == 0 {
		err = fmt.Errorf("%w: no family", errMalformed)
	}
	return family, groupID, err
}

// parseStatus reads which of the devices in the answer to STATUS have a server.
func parseStatus(attrs []byte) (connected map[uint32]bool, err error) {
	connected = make(map[uint32]bool)
	err = eachAttr(attrs, func(typ uint16, list []byte) error {
		if typ != attrDevices {
			return nil
		}
		return eachAttr(list, func(typ uint16, device []byte) error {
			if typ != attrDevice {
				return nil
			}
			var index uint32
			var is bool
			err := eachAttr(device, func(typ uint16, v []byte) (err error) {
				switch {
				case typ == attrDevIndex:
					index, err = parseUint32(v)
				case typ == attrConnected && len(v) > 0:
					is = v[0] != 0
				}
				return err
			})
			connected[index] = is
			return err
		})
	})
	return connected, err
}

// parseLinkDead returns the device of which a socket has died, if that is what a
// datagram tells.
func parseLinkDead(b []byte, family uint16) (index uint32, ok bool) {
	m, _, err := nextMessage(b)
	if err != nil || m.typ != family {
		return 0, false
	}
	cmd, attrs, err := m.genl()
	if err != nil || cmd != cmdLinkDead {
		return 0, false
	}
	err = eachAttr(attrs, func(typ uint16, v []byte) (err error) {
		if typ == attrIndex {
			index, err = parseUint32(v)
			ok = err == nil
		}
		return err
	})
	return index, ok && err == nil
}
