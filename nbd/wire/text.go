package wire

import "strconv"

// CmdName returns the name of a command in lower case, as in logs and metric
// labels: "read", "write_zeroes". A command not known is "cmd_" and its number.
func CmdName(c Cmd) string {
	switch c {
	case CmdRead:
		return "read"
	case CmdWrite:
		return "write"
	case CmdDisc:
		return "disconnect"
	case CmdFlush:
		return "flush"
	case CmdTrim:
		return "trim"
	case CmdCache:
		return "cache"
	case CmdWriteZeroes:
		return "write_zeroes"
	case CmdBlockStatus:
		return "block_status"
	case CmdResize:
		return "resize"
	}
	return "cmd_" + strconv.Itoa(int(c))
}

// ErrnoName returns the name of an outcome: "OK", "EINVAL". One not known is
// "errno_" and its number.
func ErrnoName(e Errno) string {
	switch e {
	case OK:
		return "OK"
	case EPERM:
		return "EPERM"
	case EIO:
		return "EIO"
	case ENOMEM:
		return "ENOMEM"
	case EINVAL:
		return "EINVAL"
	case ENOSPC:
		return "ENOSPC"
	case EOVERFLOW:
		return "EOVERFLOW"
	case ENOTSUP:
		return "ENOTSUP"
	case ESHUTDOWN:
		return "ESHUTDOWN"
	}
	return "errno_" + strconv.FormatUint(uint64(e), 10)
}

// ReplyName returns the name of an answer to an option: "ACK", "ERR_UNSUP".
// One not known is "reply_" and its number in hex.
func ReplyName(r Reply) string {
	switch r {
	case RepAck:
		return "ACK"
	case RepServer:
		return "SERVER"
	case RepInfo:
		return "INFO"
	case RepMetaContext:
		return "META_CONTEXT"
	case RepErrUnsup:
		return "ERR_UNSUP"
	case RepErrPolicy:
		return "ERR_POLICY"
	case RepErrInvalid:
		return "ERR_INVALID"
	case RepErrPlatform:
		return "ERR_PLATFORM"
	case RepErrTLSReqd:
		return "ERR_TLS_REQD"
	case RepErrUnknown:
		return "ERR_UNKNOWN"
	case RepErrShutdown:
		return "ERR_SHUTDOWN"
	case RepErrBlockSizeReqd:
		return "ERR_BLOCK_SIZE_REQD"
	case RepErrTooBig:
		return "ERR_TOO_BIG"
	case RepErrExtHeaderReqd:
		return "ERR_EXT_HEADER_REQD"
	}
	return "reply_0x" + strconv.FormatUint(uint64(r), 16)
}
