package nbd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"tierd/nbd/wire"
)

// What a client may use up before it has chosen an export.
const (
	maxOptionData     = 256 << 10 // bytes of one option; the longest INFO has 135,178
	maxHandshakeBytes = 4 << 20   // of all options; enough for INFO about each of 10,000 exports
	maxOptions        = 20000
	sendReply         = 8 << 10 // bytes of an answer that are written before it is whole: no connection keeps more
	maxText           = 200     // bytes of a client's string that come back in messages
)

// errTLS is the failure of a TLS handshake.
var errTLS = errors.New("TLS handshake failed")

// errRefused ends a handshake by EXPORT_NAME, which has no other answer.
var errRefused = errors.New("export refused")

// errAborted ends a handshake by the client's ABORT.
var errAborted = errors.New("client aborts the handshake")

// A handshake is a conn on the way to an export. Reads take exactly what they
// need: what follows the last option is the transmission's.
type handshake struct {
	c       *conn
	client  uint32 // flags
	options int
	bytes   int64
	reply   []byte    // what is answered to the option at hand and not yet written
	until   time.Time // the deadline of it all
	negotiated
}

// negotiated is what options have set, for the export to be chosen.
type negotiated struct {
	structured bool
	selected   selection
	identity   identity
}

// negotiate takes a new connection to an export or to its end; reason is one
// of the Reason constants if err is not nil.
func (c *conn) negotiate() (reason string, err error) {
	hs := &handshake{c: c, until: time.Now().Add(c.srv.cfg.HandshakeTimeout)}
	_ = c.nc.SetDeadline(hs.until)
	if c.stopping.Load() {
		return ReasonShutdown, errStopping
	}
	defer func() {
		if p := recover(); p != nil {
			c.srv.panicked("handshake", p)
			reason, err = ReasonPanic, errPanic
		}
	}()
	if err := hs.run(); err != nil {
		return c.reasonOf(err), err
	}
	_ = c.nc.SetDeadline(time.Time{})
	return "", nil
}

func (c *conn) reasonOf(err error) string {
	switch {
	case errors.Is(err, errAborted):
		return ReasonAborted
	case errors.Is(err, errProtocol):
		return ReasonProtocol
	case errors.Is(err, errTLS) && !errors.Is(err, os.ErrDeadlineExceeded) && !c.stopping.Load():
		return ReasonTLS
	case errors.Is(err, ErrNoExport):
		return ReasonNoExport
	case c.stopping.Load(), errors.Is(err, errStopping), errors.Is(err, ErrShutdown):
		return ReasonShutdown
	case errors.Is(err, errRefused):
		return ReasonRefused
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ReasonTimeout
	}
	return ReasonHangup
}

func (hs *handshake) run() error {
	var b [wire.GreetingSize]byte
	wire.PutGreeting(b[:], wire.HandshakeFixedNewstyle|wire.HandshakeNoZeroes)
	if _, err := hs.c.stream().Write(b[:]); err != nil {
		return err
	}
	flags := b[:wire.ClientFlagsSize]
	if _, err := io.ReadFull(hs.c.stream(), flags); err != nil {
		return err
	}
	hs.client = uint32(flags[0])<<24 | uint32(flags[1])<<16 | uint32(flags[2])<<8 | uint32(flags[3])
	if hs.client&^(wire.ClientFixedNewstyle|wire.ClientNoZeroes) != 0 {
		return fmt.Errorf("%w: client flags %#x", errProtocol, hs.client)
	}
	for {
		done, err := hs.option()
		if err != nil || done {
			return err
		}
	}
}

// option answers one option, and returns whether an export was chosen.
func (hs *handshake) option() (done bool, err error) {
	var b [wire.OptionHeaderSize]byte
	if _, err := io.ReadFull(hs.c.stream(), b[:]); err != nil {
		return false, err
	}
	h := wire.ParseOption(b[:])
	hs.options++
	hs.bytes += int64(h.Length) + wire.OptionHeaderSize
	switch {
	case h.OptionMagic != wire.OptionMagic:
		return false, fmt.Errorf("%w: option magic %#x", errProtocol, h.OptionMagic)
	case hs.options > maxOptions, hs.bytes > maxHandshakeBytes:
		return false, fmt.Errorf("%w: %d options, %d bytes", errProtocol, hs.options, hs.bytes)
	}

	if h.ID == wire.OptExportName && hs.c.mustTLS() {
		return false, fmt.Errorf("%w: EXPORT_NAME without TLS", errProtocol)
	}
	if h.ID == wire.OptExportName {
		return hs.exportName(h.Length)
	}
	if hs.client&wire.ClientFixedNewstyle == 0 {
		return false, fmt.Errorf("%w: option %d without fixed newstyle", errProtocol, h.ID)
	}
	if h.ID == wire.OptAbort {
		// The client may be gone already, and its data mean nothing.
		hs.respond(h.ID, wire.RepAck, nil)
		_ = hs.send()
		return false, errAborted
	}
	data, tooBig, err := hs.data(h.Length)
	if err != nil {
		return false, err
	}
	var dev *opened
	switch {
	case hs.c.stopping.Load():
		hs.respond(h.ID, wire.RepErrShutdown, nil)
	case tooBig:
		hs.respond(h.ID, wire.RepErrTooBig, []byte("option too long"))
	case h.ID == wire.OptStartTLS && hs.c.srv.cfg.TLS != TLSOff:
		return false, hs.startTLS(data)
	case hs.c.mustTLS():
		hs.respond(h.ID, wire.RepErrTLSReqd, []byte("TLS is required"))
	case h.ID == wire.OptList:
		err = hs.list(data)
	case h.ID == wire.OptInfo, h.ID == wire.OptGo:
		dev = hs.infoOrGo(h.ID, data)
	case h.ID == wire.OptClient:
		hs.clientID(data)
	case h.ID == wire.OptStructuredReply:
		hs.structuredReply(data)
	case h.ID == wire.OptListMetaContext, h.ID == wire.OptSetMetaContext:
		hs.metaContexts(h.ID, data)
	default:
		hs.respond(h.ID, wire.RepErrUnsup, nil)
	}
	if err == nil {
		err = hs.send()
	}
	if err != nil {
		dev.close()
		return false, err
	}
	if dev != nil {
		hs.chosen(dev)
	}
	return dev != nil, nil
}

// data reads the data of an option. Memory grows with what has really come. Of
// an option too big for any use the data are skipped.
func (hs *handshake) data(n uint32) (data []byte, tooBig bool, err error) {
	var piece [512]byte
	for left := int64(n); left > 0; {
		p := piece[:min(left, int64(len(piece)))]
		if _, err := io.ReadFull(hs.c.stream(), p); err != nil {
			return nil, false, err
		}
		left -= int64(len(p))
		if n <= maxOptionData {
			data = append(data, p...)
		}
	}
	return data, n > maxOptionData, nil
}

// send writes what is answered so far.
func (hs *handshake) send() error {
	_, err := hs.c.stream().Write(hs.reply)
	hs.reply = hs.reply[:0]
	return err
}

// respond appends an answer to the option at hand.
func (hs *handshake) respond(opt wire.Option, rep wire.Reply, data []byte) {
	var b [wire.OptionReplySize]byte
	wire.PutOptionReply(b[:], opt, rep, uint32(len(data)))
	hs.reply = append(hs.reply, b[:]...)
	hs.reply = append(hs.reply, data...)
}

// An opened is an export that a client has chosen.
type opened struct {
	asked string // the name that the client gave
	dev   Device
	info  ExportInfo
}

func (o *opened) close() {
	if o != nil {
		_ = o.dev.Close()
	}
}

// permitted tells whether the client may use an export.
func (hs *handshake) permitted(info ExportInfo) bool {
	return len(info.Clients) == 0 || hs.c.local() || hs.c.subject != "" && slices.Contains(info.Clients, hs.c.subject)
}

// lookUp returns the description of an export that the client may use.
func (hs *handshake) lookUp(name string) (ExportInfo, error) {
	info, err := hs.c.srv.cfg.Exports.Info(name)
	if err == nil && !hs.permitted(info) {
		return ExportInfo{}, ErrForbidden
	}
	return info, err
}

// open looks up and opens an export, once no earlier connection of the client can do
// anything to it any more. Its size is that of the Device.
func (hs *handshake) open(name string) (o *opened, err error) {
	exports := hs.c.srv.cfg.Exports
	info, err := hs.lookUp(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if o == nil {
			hs.c.unclaim()
		}
	}()
	// Half of what is left is for the open and the answer.
	if err := hs.c.fence(hs.identity, info.Name, time.Until(hs.until)/2); err != nil {
		return nil, err
	}
	dev, err := exports.Open(info.Name)
	if err != nil {
		return nil, err
	}
	if info.Size = dev.Size(); info.Size < 0 {
		_ = dev.Close()
		return nil, fmt.Errorf("export of size %d", info.Size)
	}
	return &opened{asked: name, dev: dev, info: info}, nil
}

// chosen ends the handshake.
func (hs *handshake) chosen(o *opened) {
	c := hs.c
	c.dev, c.info, c.size = o.dev, o.info, uint64(o.info.Size)
	if c.tls != nil {
		c.below.serving = true
	}
	c.structured = hs.structured
	if hs.selected.export == o.asked {
		c.contexts = hs.selected.contexts
	}
	c.serving.Store(true)
}

// exportName answers the one option that has no error replies.
func (hs *handshake) exportName(n uint32) (done bool, err error) {
	if n > wire.MaxName {
		return false, fmt.Errorf("%w: name of %d bytes", errProtocol, n)
	}
	data, _, err := hs.data(n)
	if err != nil {
		return false, err
	}
	name := string(data)
	if err := wire.CheckName(name); err != nil {
		return false, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if hs.c.stopping.Load() {
		return false, errStopping
	}
	o, err := hs.open(name)
	if err != nil {
		return false, fmt.Errorf("%w: open export %s: %w", errRefused, quote(name), err)
	}
	var b [10 + wire.ExportNamePadding]byte
	var info [wire.InfoExportSize]byte
	wire.PutExportInfo(info[:], uint64(o.info.Size), hs.flags(o.info))
	answer := b[:]
	if hs.client&wire.ClientNoZeroes != 0 {
		answer = b[:10]
	}
	copy(answer, info[2:])
	if _, err := hs.c.stream().Write(answer); err != nil {
		o.close()
		return false, err
	}
	hs.chosen(o)
	return true, nil
}

func (hs *handshake) structuredReply(data []byte) {
	if len(data) > 0 {
		hs.respond(wire.OptStructuredReply, wire.RepErrInvalid, []byte("STRUCTURED_REPLY takes no data"))
		return
	}
	hs.structured = true
	hs.respond(wire.OptStructuredReply, wire.RepAck, nil)
}

func (hs *handshake) list(data []byte) error {
	if len(data) > 0 {
		hs.respond(wire.OptList, wire.RepErrInvalid, []byte("LIST takes no data"))
		return nil
	}
	for _, info := range hs.c.srv.cfg.Exports.List() {
		if !hs.permitted(info) {
			continue
		}
		hs.respond(wire.OptList, wire.RepServer, wire.AppendServer(nil, info.Name, clip(info.Description)))
		if len(hs.reply) < sendReply {
			continue
		}
		if err := hs.send(); err != nil {
			return err
		}
	}
	hs.respond(wire.OptList, wire.RepAck, nil)
	return nil
}

// infoOrGo answers INFO and GO. Nothing that an earlier option named is kept,
// so what GO opens is what it names itself.
func (hs *handshake) infoOrGo(opt wire.Option, data []byte) *opened {
	name, asked, err := wire.ParseInfoRequest(data)
	switch {
	case errors.Is(err, wire.ErrNameTooLong):
		hs.respond(opt, wire.RepErrTooBig, []byte(err.Error()))
		return nil
	case err != nil:
		hs.respond(opt, wire.RepErrInvalid, []byte(err.Error()))
		return nil
	}

	var o *opened
	var info ExportInfo
	if opt == wire.OptGo {
		if o, err = hs.open(name); o != nil {
			info = o.info
		}
	} else {
		info, err = hs.lookUp(name)
	}
	if err != nil {
		hs.refuse(opt, name, err)
		return nil
	}

	var b [wire.InfoBlockSizeSize]byte
	wire.PutExportInfo(b[:], uint64(info.Size), hs.flags(info))
	hs.respond(opt, wire.RepInfo, b[:wire.InfoExportSize])
	if wire.AsksFor(asked, wire.InfoName) {
		hs.respond(opt, wire.RepInfo, append([]byte{0, byte(wire.InfoName)}, info.Name...))
	}
	if wire.AsksFor(asked, wire.InfoDescription) {
		hs.respond(opt, wire.RepInfo, append([]byte{0, byte(wire.InfoDescription)}, clip(info.Description)...))
	}
	if wire.AsksFor(asked, wire.InfoBlockSize) {
		limit := hs.c.srv.cfg.MaxPayload
		wire.PutBlockSizeInfo(b[:], 1, preferredBlock(info, limit), limit)
		hs.respond(opt, wire.RepInfo, b[:])
	}
	hs.respond(opt, wire.RepAck, nil)
	return o
}

// refuse answers an INFO or GO for an export that cannot be had.
func (hs *handshake) refuse(opt wire.Option, name string, err error) {
	log := hs.c.srv.log
	switch {
	case errors.Is(err, ErrNoExport):
		hs.respond(opt, wire.RepErrUnknown, []byte("no export named "+quote(name)))
	case errors.Is(err, ErrForbidden):
		hs.respond(opt, wire.RepErrPolicy, []byte("export "+quote(name)+" may not be used"))
	case errors.Is(err, errStale):
		hs.respond(opt, wire.RepErrPolicy, []byte(err.Error()))
	case errors.Is(err, errNotFenced):
		hs.respond(opt, wire.RepErrPlatform, []byte(err.Error()))
	case errors.Is(err, ErrShutdown):
		hs.respond(opt, wire.RepErrShutdown, nil)
	default:
		log.Warn("open export", "export", quote(name), "remote", hs.c.remote, "err", err)
		hs.respond(opt, wire.RepErrPlatform, []byte("export "+quote(name)+" cannot be opened"))
	}
}

// flags returns what an export can do for this client.
func (hs *handshake) flags(info ExportInfo) uint16 {
	flags := wire.FlagHasFlags | wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagCanMultiConn | wire.FlagSendCache
	if hs.structured {
		flags |= wire.FlagSendDF
	}
	if info.ReadOnly {
		return flags | wire.FlagReadOnly
	}
	return flags | wire.FlagSendTrim | wire.FlagSendWriteZeroes | wire.FlagSendFastZero
}

// preferredBlock returns the I/O size to advertise: a power of two from 512 to limit.
func preferredBlock(info ExportInfo, limit uint32) uint32 {
	p := info.PreferredBlock
	if p < 512 || p&(p-1) != 0 {
		p = 4096
	}
	for p > limit && p > 512 {
		p /= 2
	}
	return p
}

// quote makes a client's string fit for a message.
func quote(s string) string {
	if len(s) > maxText {
		return strconv.QuoteToASCII(s[:maxText]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

// clip makes a description fit for the wire.
func clip(s string) string {
	if len(s) > wire.MaxString {
		s = s[:wire.MaxString]
	}
	return strings.ToValidUTF8(s, "?")
}
