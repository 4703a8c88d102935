package wire

import "github.com/pojntfx/go-nbd/pkg/protocol"

// Magic numbers.
const (
	// GreetingMagic is "NBDMAGIC", the first eight bytes of every server.
	GreetingMagic = protocol.NEGOTIATION_MAGIC_OLDSTYLE
	// OptionMagic is "IHAVEOPT": second in the newstyle greeting, first in each option.
	OptionMagic = protocol.NEGOTIATION_MAGIC_OPTION
	// OptionReplyMagic begins each answer to an option.
	OptionReplyMagic = protocol.NEGOTIATION_MAGIC_REPLY
	// OldstyleMagic stands in the place of OptionMagic in the oldstyle handshake,
	// which is never offered; clients tell the two apart by it.
	OldstyleMagic uint64 = 0x00420281861253

	// RequestMagic begins each request.
	RequestMagic = protocol.TRANSMISSION_MAGIC_REQUEST
	// SimpleReplyMagic begins a simple reply.
	SimpleReplyMagic = protocol.TRANSMISSION_MAGIC_REPLY
	// StructuredReplyMagic begins a chunk of a structured reply.
	StructuredReplyMagic uint32 = 0x668e33ef
	// ExtendedRequestMagic and ExtendedReplyMagic belong to extended headers.
	ExtendedRequestMagic uint32 = 0x21e41c71
	ExtendedReplyMagic   uint32 = 0x6e8a278c
)

// Sizes in bytes.
const (
	GreetingSize        = 18
	ClientFlagsSize     = 4
	OptionHeaderSize    = 16
	OptionReplySize     = 20
	ExportNamePadding   = 124 // zero bytes after the answer to EXPORT_NAME
	RequestSize         = 28
	SimpleReplySize     = 16
	StructuredReplySize = 20
	DataChunkSize       = StructuredReplySize + 8  // before the data of a ChunkOffsetData
	HoleChunkSize       = StructuredReplySize + 12 // of a ChunkOffsetHole
	ErrorChunkSize      = StructuredReplySize + 14 // of a ChunkErrorOffset without a text
	StatusChunkSize     = StructuredReplySize + 4  // before the extents of a ChunkBlockStatus
	StatusExtentSize    = 8
	ClientIDSize        = 16
	ClientSize          = ClientIDSize + 8 // data of OptClient
	InfoExportSize      = 12
	InfoBlockSizeSize   = 14
)

// Limits. The first three are the protocol's, the last is what every client
// may assume of a server that did not tell otherwise.
const (
	MaxName    = 4096 // bytes of an export name
	MaxString  = 4096 // bytes of a description, an error text or a query
	MaxExtents = 1 << 20
	MaxPayload = 32 << 20 // bytes of one READ or WRITE
)

// HandshakeFlag bits are sent by the server in its greeting.
const (
	HandshakeFixedNewstyle = protocol.NEGOTIATION_HANDSHAKE_FLAG_FIXED_NEWSTYLE
	HandshakeNoZeroes      = uint16(1 << 1)
)

// ClientFlag bits are the client's answer to the greeting.
const (
	ClientFixedNewstyle = uint32(1 << 0)
	ClientNoZeroes      = uint32(1 << 1)
)

// An Option is what a client asks for during the handshake.
type Option = uint32

// The options.
const (
	OptExportName      Option = 1
	OptAbort           Option = protocol.NEGOTIATION_ID_OPTION_ABORT
	OptList            Option = protocol.NEGOTIATION_ID_OPTION_LIST
	OptPeekExport      Option = 4 // withdrawn
	OptStartTLS        Option = 5
	OptInfo            Option = protocol.NEGOTIATION_ID_OPTION_INFO
	OptGo              Option = protocol.NEGOTIATION_ID_OPTION_GO
	OptStructuredReply Option = 8
	OptListMetaContext Option = 9
	OptSetMetaContext  Option = 10
	OptExtendedHeaders Option = 11

	// OptClient is no option of the protocol but of tierd: a client that connects
	// again tells who it is, so that what is left of its earlier connections is
	// stopped. Its data are an id that the client keeps to itself, and a generation.
	OptClient Option = 0x74640001
)

// A Reply is the kind of an answer to an option. Errors have the top bit set.
type Reply = uint32

// The replies.
const (
	RepAck         Reply = protocol.NEGOTIATION_TYPE_REPLY_ACK
	RepServer      Reply = protocol.NEGOTIATION_TYPE_REPLY_SERVER
	RepInfo        Reply = protocol.NEGOTIATION_TYPE_REPLY_INFO
	RepMetaContext Reply = 4

	RepErrBit           Reply = 1 << 31
	RepErrUnsup         Reply = protocol.NEGOTIATION_TYPE_REPLY_ERR_UNSUPPORTED
	RepErrPolicy        Reply = RepErrBit | 2
	RepErrInvalid       Reply = RepErrBit | 3
	RepErrPlatform      Reply = RepErrBit | 4
	RepErrTLSReqd       Reply = RepErrBit | 5
	RepErrUnknown       Reply = protocol.NEGOTIATION_TYPE_REPLY_ERR_UNKNOWN
	RepErrShutdown      Reply = RepErrBit | 7
	RepErrBlockSizeReqd Reply = RepErrBit | 8
	RepErrTooBig        Reply = RepErrBit | 9
	RepErrExtHeaderReqd Reply = RepErrBit | 10
)

// An Info is a fact about an export that INFO and GO can ask for.
type Info = uint16

// The infos. InfoExport is always told.
const (
	InfoExport      Info = protocol.NEGOTIATION_TYPE_INFO_EXPORT
	InfoName        Info = protocol.NEGOTIATION_TYPE_INFO_NAME
	InfoDescription Info = protocol.NEGOTIATION_TYPE_INFO_DESCRIPTION
	InfoBlockSize   Info = protocol.NEGOTIATION_TYPE_INFO_BLOCKSIZE
)

// Transmission flags tell what an export can do.
const (
	FlagHasFlags           = protocol.NEGOTIATION_REPLY_FLAGS_HAS_FLAGS
	FlagReadOnly           = uint16(1 << 1)
	FlagSendFlush          = uint16(1 << 2)
	FlagSendFUA            = uint16(1 << 3)
	FlagRotational         = uint16(1 << 4)
	FlagSendTrim           = uint16(1 << 5)
	FlagSendWriteZeroes    = uint16(1 << 6)
	FlagSendDF             = uint16(1 << 7)
	FlagCanMultiConn       = protocol.NEGOTIATION_REPLY_FLAGS_CAN_MULTI_CONN
	FlagSendResize         = uint16(1 << 9)
	FlagSendCache          = uint16(1 << 10)
	FlagSendFastZero       = uint16(1 << 11)
	FlagBlockStatusPayload = uint16(1 << 12)
)

// A Cmd is the type of a request.
type Cmd = uint16

// The commands.
const (
	CmdRead        Cmd = protocol.TRANSMISSION_TYPE_REQUEST_READ
	CmdWrite       Cmd = protocol.TRANSMISSION_TYPE_REQUEST_WRITE
	CmdDisc        Cmd = protocol.TRANSMISSION_TYPE_REQUEST_DISC
	CmdFlush       Cmd = 3
	CmdTrim        Cmd = 4
	CmdCache       Cmd = 5
	CmdWriteZeroes Cmd = 6
	CmdBlockStatus Cmd = 7
	CmdResize      Cmd = 8
)

// Command flags.
const (
	CmdFlagFUA        = uint16(1 << 0)
	CmdFlagNoHole     = uint16(1 << 1)
	CmdFlagDF         = uint16(1 << 2)
	CmdFlagReqOne     = uint16(1 << 3)
	CmdFlagFastZero   = uint16(1 << 4)
	CmdFlagPayloadLen = uint16(1 << 5)
)

// An Errno is the outcome of a request; 0 is success. The values are the
// protocol's and do not depend on the platform.
type Errno = uint32

// The errors a server may answer.
const (
	OK        Errno = 0
	EPERM     Errno = protocol.TRANSMISSION_ERROR_EPERM
	EIO       Errno = 5
	ENOMEM    Errno = 12
	EINVAL    Errno = protocol.TRANSMISSION_ERROR_EINVAL
	ENOSPC    Errno = 28
	EOVERFLOW Errno = 75
	ENOTSUP   Errno = 95
	ESHUTDOWN Errno = 108
)

// A Chunk is the type of one chunk of a structured reply.
type Chunk = uint16

// The chunks. Those with the top bit set are errors.
const (
	ChunkNone           Chunk = 0
	ChunkOffsetData     Chunk = 1
	ChunkOffsetHole     Chunk = 2
	ChunkBlockStatus    Chunk = 5
	ChunkBlockStatusExt Chunk = 6
	ChunkErrBit         Chunk = 1 << 15
	ChunkError          Chunk = ChunkErrBit | 1
	ChunkErrorOffset    Chunk = ChunkErrBit | 2
)

// ReplyFlagDone marks the last chunk of a structured reply.
const ReplyFlagDone = uint16(1 << 0)

// Bits of an extent in the context "base:allocation".
const (
	StateHole = uint32(1 << 0)
	StateZero = uint32(1 << 1)
)
