package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"tierd/nbd/wire"
)

// maxReply bounds the data of one answer to an option: a name and a text.
const maxReply = wire.MaxName + wire.MaxString + 64

// ErrProtocol is returned for a server that breaks the protocol.
var ErrProtocol = errors.New("NBD protocol violated by the server")

// An OptionError is a server's refusal of an option.
type OptionError struct {
	Reply   wire.Reply
	Message string // the server's own words, often empty
}

func (e *OptionError) Error() string {
	if e.Message == "" {
		return "server answers " + wire.ReplyName(e.Reply)
	}
	return fmt.Sprintf("server answers %s: %.200q", wire.ReplyName(e.Reply), e.Message)
}

// An Export is what a server tells of one export in its list.
type Export struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// exportInfo is what the handshake found out.
type exportInfo struct {
	size        uint64
	flags       uint16
	description string
	blocks      wire.BlockSizeInfo
}

// newExportInfo returns what holds for a server that tells nothing of block sizes.
func newExportInfo() exportInfo {
	return exportInfo{blocks: wire.BlockSizeInfo{MinimumBlockSize: 1, PreferredBlockSize: 4096, MaximumBlockSize: wire.MaxPayload}}
}

// haggler does the handshake on a fresh connection.
type haggler struct {
	conn net.Conn
	// noZeroes: EXPORT_NAME is answered without padding.
	noZeroes bool
	info     exportInfo // of the export that was opened
}

// withContext makes the connection fail once ctx ends, until the returned
// function is called; that one reports ctx's error.
func withContext(ctx context.Context, conn net.Conn) func() error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() error {
		if stop() {
			return nil
		}
		return ctx.Err()
	}
}

// greet reads the greeting and answers with the flags of both sides.
func (h *haggler) greet() error {
	var b [wire.GreetingSize]byte
	if _, err := io.ReadFull(h.conn, b[:]); err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	g := wire.ParseGreeting(b[:])
	if g.OldstyleMagic != wire.GreetingMagic || g.OptionMagic != wire.OptionMagic {
		return fmt.Errorf("%w: no newstyle greeting", ErrProtocol)
	}
	if g.HandshakeFlags&wire.HandshakeFixedNewstyle == 0 {
		return fmt.Errorf("%w: fixed newstyle is not offered", ErrProtocol)
	}
	flags := wire.ClientFixedNewstyle
	if g.HandshakeFlags&wire.HandshakeNoZeroes != 0 {
		flags |= wire.ClientNoZeroes
		h.noZeroes = true
	}
	if _, err := h.conn.Write(binary.BigEndian.AppendUint32(nil, flags)); err != nil {
		return fmt.Errorf("send client flags: %w", err)
	}
	return nil
}

func (h *haggler) send(opt wire.Option, data []byte) error {
	b := make([]byte, wire.OptionHeaderSize, wire.OptionHeaderSize+len(data))
	wire.PutOption(b, opt, uint32(len(data)))
	if _, err := h.conn.Write(append(b, data...)); err != nil {
		return fmt.Errorf("send option: %w", err)
	}
	return nil
}

// reply reads one answer to opt. A refusal is an *OptionError.
func (h *haggler) reply(opt wire.Option) (wire.Reply, []byte, error) {
	var b [wire.OptionReplySize]byte
	if _, err := io.ReadFull(h.conn, b[:]); err != nil {
		return 0, nil, fmt.Errorf("read option reply: %w", err)
	}
	r := wire.ParseOptionReply(b[:])
	if r.ReplyMagic != wire.OptionReplyMagic || r.ID != opt {
		return 0, nil, fmt.Errorf("%w: answer to option %d has magic %#x and option %d", ErrProtocol, opt, r.ReplyMagic, r.ID)
	}
	if r.Length > maxReply {
		return 0, nil, fmt.Errorf("%w: option reply of %d bytes", ErrProtocol, r.Length)
	}
	data := make([]byte, r.Length)
	if _, err := io.ReadFull(h.conn, data); err != nil {
		return 0, nil, fmt.Errorf("read option reply: %w", err)
	}
	if wire.IsError(r.Type) {
		return r.Type, nil, &OptionError{Reply: r.Type, Message: string(data)}
	}
	return r.Type, data, nil
}

// open chooses an export and enters the transmission phase.
func (h *haggler) open(name string) (exportInfo, error) {
	info, err := h.goExport(name)
	var refused *OptionError
	if errors.As(err, &refused) && refused.Reply == wire.RepErrUnsup {
		info, err = h.exportName(name)
	}
	if err != nil {
		return info, err
	}
	if info.size > math.MaxInt64 {
		return info, fmt.Errorf("%w: size %d", ErrProtocol, info.size)
	}
	return info, info.checkBlocks()
}

func (h *haggler) goExport(name string) (exportInfo, error) {
	info := newExportInfo()
	req := wire.AppendInfoRequest(nil, name, wire.InfoDescription, wire.InfoBlockSize)
	if err := h.send(wire.OptGo, req); err != nil {
		return info, err
	}
	told := false
	for {
		typ, data, err := h.reply(wire.OptGo)
		if err != nil {
			return info, err
		}
		switch typ {
		case wire.RepAck:
			if !told {
				return info, fmt.Errorf("%w: GO succeeded without the size", ErrProtocol)
			}
			return info, nil
		case wire.RepInfo:
			if len(data) < 2 {
				return info, fmt.Errorf("%w: info of %d bytes", ErrProtocol, len(data))
			}
			switch i := binary.BigEndian.Uint16(data); {
			case i == wire.InfoExport && len(data) == wire.InfoExportSize:
				e := wire.ParseExportInfo(data)
				info.size, info.flags, told = e.Size, e.TransmissionFlags, true
			case i == wire.InfoBlockSize && len(data) == wire.InfoBlockSizeSize:
				info.blocks = wire.ParseBlockSizeInfo(data)
			case i == wire.InfoDescription:
				info.description = string(data[2:])
			case i == wire.InfoExport || i == wire.InfoBlockSize:
				return info, fmt.Errorf("%w: info %d of %d bytes", ErrProtocol, i, len(data))
			}
		default:
			return info, fmt.Errorf("%w: %s in answer to GO", ErrProtocol, wire.ReplyName(typ))
		}
	}
}

// exportName is the old way in: no error can be told, the server hangs up.
func (h *haggler) exportName(name string) (exportInfo, error) {
	info := newExportInfo()
	if err := h.send(wire.OptExportName, []byte(name)); err != nil {
		return info, err
	}
	b := make([]byte, 10, 10+wire.ExportNamePadding)
	if !h.noZeroes {
		b = b[:cap(b)]
	}
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return info, fmt.Errorf("open export %q: %w", name, err)
	}
	info.size = binary.BigEndian.Uint64(b)
	info.flags = binary.BigEndian.Uint16(b[8:])
	return info, nil
}

func (info *exportInfo) checkBlocks() error {
	lo, pref, hi := info.blocks.MinimumBlockSize, info.blocks.PreferredBlockSize, info.blocks.MaximumBlockSize
	pow2 := func(n uint32) bool { return n > 0 && n&(n-1) == 0 }
	if !pow2(lo) || lo > 64<<10 || !pow2(pref) || pref < lo || hi < lo {
		return fmt.Errorf("%w: block sizes %d, %d, %d", ErrProtocol, lo, pref, hi)
	}
	// The payload limit of the protocol holds whatever the server allows, and a
	// request has to be a multiple of the minimum.
	info.blocks.MaximumBlockSize = min(hi, wire.MaxPayload) / lo * lo
	return nil
}

// List returns the exports of the server at uri, in its order; the export named
// in uri plays no part.
func List(ctx context.Context, uri string) ([]Export, error) {
	a, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	var list []Export
	h, err := negotiate(ctx, a, func(h *haggler) (err error) {
		list, err = h.list()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list exports of %s: %w", uri, err)
	}
	return list, h.conn.Close()
}

// maxList bounds the exports that a server can make us remember.
const maxList = 1 << 16

func (h *haggler) list() ([]Export, error) {
	if err := h.send(wire.OptList, nil); err != nil {
		return nil, err
	}
	var list []Export
	for {
		typ, data, err := h.reply(wire.OptList)
		if err != nil {
			return nil, err
		}
		switch typ {
		case wire.RepAck:
			// The server may hang up without an answer to ABORT.
			_ = h.send(wire.OptAbort, nil)
			return list, nil
		case wire.RepServer:
			name, desc, err := wire.ParseServer(data)
			if err != nil || len(list) == maxList {
				return nil, fmt.Errorf("%w: export %d of the list", ErrProtocol, len(list))
			}
			list = append(list, Export{Name: name, Description: desc})
		default:
			return nil, fmt.Errorf("%w: %s in answer to LIST", ErrProtocol, wire.ReplyName(typ))
		}
	}
}
