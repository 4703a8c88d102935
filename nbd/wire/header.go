package wire

import (
	"encoding/binary"

	"github.com/pojntfx/go-nbd/pkg/protocol"
)

// The headers are plain structs; Put functions fill the first bytes of b and
// panic if it is shorter than the header, Parse functions take from it. None of
// them allocates, and none judges: comparing the magic is the caller's part,
// because what follows from a wrong one differs from place to place.
type (
	// Greeting is the server's first message.
	Greeting = protocol.NegotiationNewstyleHeader
	// OptionHeader comes before the data of an option.
	OptionHeader = protocol.NegotiationOptionHeader
	// OptionReply comes before the data of an answer to an option.
	OptionReply = protocol.NegotiationReplyHeader
	// ExportInfo is the data of a REP_INFO of InfoExport.
	ExportInfo = protocol.NegotiationReplyInfo
	// BlockSizeInfo is the data of a REP_INFO of InfoBlockSize.
	BlockSizeInfo = protocol.NegotiationReplyBlockSize
	// Request comes before the payload of a request. Handle is the cookie,
	// which the reply carries back.
	Request = protocol.TransmissionRequestHeader
	// SimpleReply comes before the payload of a reply.
	SimpleReply = protocol.TransmissionReplyHeader
)

// StructuredReply comes before the payload of one chunk of a structured reply.
type StructuredReply struct {
	ReplyMagic uint32
	Flags      uint16
	Type       Chunk
	Handle     uint64
	Length     uint32
}

var be = binary.BigEndian

// PutGreeting writes the newstyle greeting with these HandshakeFlag bits to b[:GreetingSize].
func PutGreeting(b []byte, flags uint16) {
	_ = b[GreetingSize-1]
	be.PutUint64(b[0:], GreetingMagic)
	be.PutUint64(b[8:], OptionMagic)
	be.PutUint16(b[16:], flags)
}

// ParseGreeting reads b[:GreetingSize].
func ParseGreeting(b []byte) Greeting {
	_ = b[GreetingSize-1]
	return Greeting{OldstyleMagic: be.Uint64(b[0:]), OptionMagic: be.Uint64(b[8:]), HandshakeFlags: be.Uint16(b[16:])}
}

// PutOption writes the header of an option with n bytes of data to b[:OptionHeaderSize].
func PutOption(b []byte, opt Option, n uint32) {
	_ = b[OptionHeaderSize-1]
	be.PutUint64(b[0:], OptionMagic)
	be.PutUint32(b[8:], opt)
	be.PutUint32(b[12:], n)
}

// ParseOption reads b[:OptionHeaderSize].
func ParseOption(b []byte) OptionHeader {
	_ = b[OptionHeaderSize-1]
	return OptionHeader{OptionMagic: be.Uint64(b[0:]), ID: be.Uint32(b[8:]), Length: be.Uint32(b[12:])}
}

// PutOptionReply writes the header of an answer with n bytes of data to b[:OptionReplySize].
func PutOptionReply(b []byte, opt Option, rep Reply, n uint32) {
	_ = b[OptionReplySize-1]
	be.PutUint64(b[0:], OptionReplyMagic)
	be.PutUint32(b[8:], opt)
	be.PutUint32(b[12:], rep)
	be.PutUint32(b[16:], n)
}

// ParseOptionReply reads b[:OptionReplySize].
func ParseOptionReply(b []byte) OptionReply {
	_ = b[OptionReplySize-1]
	return OptionReply{ReplyMagic: be.Uint64(b[0:]), ID: be.Uint32(b[8:]), Type: be.Uint32(b[12:]), Length: be.Uint32(b[16:])}
}

// PutExportInfo writes an InfoExport to b[:InfoExportSize].
func PutExportInfo(b []byte, size uint64, flags uint16) {
	_ = b[InfoExportSize-1]
	be.PutUint16(b[0:], InfoExport)
	be.PutUint64(b[2:], size)
	be.PutUint16(b[10:], flags)
}

// ParseExportInfo reads b[:InfoExportSize].
func ParseExportInfo(b []byte) ExportInfo {
	_ = b[InfoExportSize-1]
	return ExportInfo{Type: be.Uint16(b[0:]), Size: be.Uint64(b[2:]), TransmissionFlags: be.Uint16(b[10:])}
}

// PutBlockSizeInfo writes an InfoBlockSize, in bytes, to b[:InfoBlockSizeSize].
func PutBlockSizeInfo(b []byte, minimum, preferred, maximum uint32) {
	_ = b[InfoBlockSizeSize-1]
	be.PutUint16(b[0:], InfoBlockSize)
	be.PutUint32(b[2:], minimum)
	be.PutUint32(b[6:], preferred)
	be.PutUint32(b[10:], maximum)
}

// ParseBlockSizeInfo reads b[:InfoBlockSizeSize].
func ParseBlockSizeInfo(b []byte) BlockSizeInfo {
	_ = b[InfoBlockSizeSize-1]
	return BlockSizeInfo{Type: be.Uint16(b[0:]), MinimumBlockSize: be.Uint32(b[2:]),
		PreferredBlockSize: be.Uint32(b[6:]), MaximumBlockSize: be.Uint32(b[10:])}
}

// PutRequest writes the header of a request to b[:RequestSize].
func PutRequest(b []byte, flags uint16, cmd Cmd, cookie, off uint64, n uint32) {
	_ = b[RequestSize-1]
	be.PutUint32(b[0:], RequestMagic)
	be.PutUint16(b[4:], flags)
	be.PutUint16(b[6:], cmd)
	be.PutUint64(b[8:], cookie)
	be.PutUint64(b[16:], off)
	be.PutUint32(b[24:], n)
}

// ParseRequest reads b[:RequestSize].
func ParseRequest(b []byte) Request {
	_ = b[RequestSize-1]
	return Request{RequestMagic: be.Uint32(b[0:]), CommandFlags: be.Uint16(b[4:]), Type: be.Uint16(b[6:]),
		Handle: be.Uint64(b[8:]), Offset: be.Uint64(b[16:]), Length: be.Uint32(b[24:])}
}

// PutSimpleReply writes the header of a simple reply to b[:SimpleReplySize].
func PutSimpleReply(b []byte, errno Errno, cookie uint64) {
	_ = b[SimpleReplySize-1]
	be.PutUint32(b[0:], SimpleReplyMagic)
	be.PutUint32(b[4:], errno)
	be.PutUint64(b[8:], cookie)
}

// ParseSimpleReply reads b[:SimpleReplySize].
func ParseSimpleReply(b []byte) SimpleReply {
	_ = b[SimpleReplySize-1]
	return SimpleReply{ReplyMagic: be.Uint32(b[0:]), Error: be.Uint32(b[4:]), Handle: be.Uint64(b[8:])}
}

// PutStructuredReply writes the header of a chunk with n bytes of payload to b[:StructuredReplySize].
func PutStructuredReply(b []byte, flags uint16, t Chunk, cookie uint64, n uint32) {
	_ = b[StructuredReplySize-1]
	be.PutUint32(b[0:], StructuredReplyMagic)
	be.PutUint16(b[4:], flags)
	be.PutUint16(b[6:], t)
	be.PutUint64(b[8:], cookie)
	be.PutUint32(b[16:], n)
}

// ParseStructuredReply reads b[:StructuredReplySize].
func ParseStructuredReply(b []byte) StructuredReply {
	_ = b[StructuredReplySize-1]
	return StructuredReply{ReplyMagic: be.Uint32(b[0:]), Flags: be.Uint16(b[4:]), Type: be.Uint16(b[6:]),
		Handle: be.Uint64(b[8:]), Length: be.Uint32(b[16:])}
}

// PutDataChunk writes what comes before n bytes of data that were read at off to
// b[:DataChunkSize].
func PutDataChunk(b []byte, flags uint16, cookie, off uint64, n uint32) {
	PutStructuredReply(b, flags, ChunkOffsetData, cookie, n+8)
	be.PutUint64(b[StructuredReplySize:], off)
}

// PutHoleChunk writes the chunk for n bytes at off that read as zeroes to
// b[:HoleChunkSize].
func PutHoleChunk(b []byte, flags uint16, cookie, off uint64, n uint32) {
	PutStructuredReply(b, flags, ChunkOffsetHole, cookie, 12)
	be.PutUint64(b[StructuredReplySize:], off)
	be.PutUint32(b[StructuredReplySize+8:], n)
}

// PutErrorChunk writes the last chunk of a reply, for a request that failed at off,
// to b[:ErrorChunkSize].
func PutErrorChunk(b []byte, cookie uint64, errno Errno, off uint64) {
	PutStructuredReply(b, ReplyFlagDone, ChunkErrorOffset, cookie, 14)
	be.PutUint32(b[StructuredReplySize:], errno)
	be.PutUint16(b[StructuredReplySize+4:], 0)
	be.PutUint64(b[StructuredReplySize+6:], off)
}

// PutStatusChunk writes what comes before count extents of a context to
// b[:StatusChunkSize].
func PutStatusChunk(b []byte, flags uint16, cookie uint64, context uint32, count int) {
	PutStructuredReply(b, flags, ChunkBlockStatus, cookie, uint32(4+count*StatusExtentSize))
	be.PutUint32(b[StructuredReplySize:], context)
}

// PutStatusExtent writes an extent, its length in bytes and its state, to
// b[:StatusExtentSize].
func PutStatusExtent(b []byte, n, state uint32) {
	be.PutUint32(b, n)
	be.PutUint32(b[4:], state)
}
