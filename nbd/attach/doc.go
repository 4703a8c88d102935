// Package attach keeps a volume attached to a /dev/nbdN of the kernel, across restarts
// and deaths of the server.
//
//	err := attach.Run(ctx, kernelClient, attach.Options{...}, func() { /* the device is there */ })
//
// Run connects to the server, gives the kernel the sockets, and then watches them. When
// they die the kernel holds the requests; Run connects again, as often as it takes, and
// gives it new ones. When ctx ends the device stays as it is: the next Run for it takes
// it over, by what is noted in the state file. It ends by itself when the device is
// disconnected.
//
// # What is checked before requests go on
//
// The server tells a volume and a continuity id in the description of the export. The
// kernel believes that everything that was answered is there. If the continuity id is
// another one, answered data may have been lost, and Run does not connect: requests wait
// until somebody disconnects the device, and looks at its file system, or accepts the
// loss (AcceptLoss). A server that tells no id, of another make, is trusted.
//
// # What the server does about it
//
// Each time that Run connects anew it has a higher generation, under one secret id. The
// server lets no request of an earlier connection begin any more before it answers, so
// that what the kernel sends again cannot be overtaken by what is left of the first try.
//
// # Memory
//
// In plain text the requests go past this process. It must be able to connect when
// memory is short, since nobody can write to the device before: the caller protects it
// (package samehost). Within TLS all bytes go through it, in buffers made at the start
// of a connection, since the kernel knows no TLS.
package attach
