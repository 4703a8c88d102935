// Package wire holds the numbers and the byte layouts of the NBD protocol: what
// a server and a client must agree on, and nothing else. It does no I/O.
//
// The source is the protocol text of the NetworkBlockDevice project
// (doc/proto.md, public domain). All integers are big-endian.
//
// Constants that the go-nbd protocol package defines are taken from there; the
// rest are written out here. Tests pin every value to the protocol text.
//
// # Handshake (fixed newstyle)
//
//	server greeting, 18 bytes          client flags, 4 bytes
//	 0  8  GreetingMagic "NBDMAGIC"     0  4  ClientFlag bits
//	 8  8  OptionMagic "IHAVEOPT"
//	16  2  HandshakeFlag bits
//
//	option, 16 bytes + data            option reply, 20 bytes + data
//	 0  8  OptionMagic                  0  8  OptionReplyMagic
//	 8  4  Option                       8  4  option answered
//	12  4  length of data              12  4  Reply
//	                                   16  4  length of data
//
//	data of INFO and GO                data of REP_SERVER
//	 0  4  name length N                0  4  name length N
//	 4  N  name                         4  N  name
//	 +  2  number of info requests      +     description, to the end
//	 +  2  each: Info
//
//	data of REP_INFO, by Info
//	 InfoExport      12 bytes: info 2, size 8, transmission flags 2
//	 InfoName        info 2, name
//	 InfoDescription info 2, description
//	 InfoBlockSize   14 bytes: info 2, minimum 4, preferred 4, maximum 4
//
//	answer to EXPORT_NAME: size 8, transmission flags 2, then 124 zero bytes
//	unless both sides set NO_ZEROES
//
// # Transmission
//
//	request, 28 bytes (+ payload)      simple reply, 16 bytes (+ payload)
//	 0  4  RequestMagic                 0  4  SimpleReplyMagic
//	 4  2  CmdFlag bits                 4  4  Errno
//	 6  2  Cmd                          8  8  cookie
//	 8  8  cookie
//	16  8  offset                      structured reply chunk, 20 bytes (+ payload)
//	24  4  length                       0  4  StructuredReplyMagic
//	                                    4  2  ReplyFlag bits
//	                                    6  2  Chunk
//	                                    8  8  cookie
//	                                   16  4  length of payload
//
// Only a WRITE request and a successful READ reply have a payload.
package wire
