// Package kernel drives the NBD client of the Linux kernel over generic netlink:
// it gives /dev/nbdN sockets to servers, new ones when those have died, and takes
// the device down. It knows nothing of the NBD protocol: the sockets come to it
// after the handshake.
//
//	k, err := kernel.Open()
//	err = k.Connect(kernel.Device{Index: 0, Size: size, Sockets: fds, ...})
//	...
//	err = k.Reconfigure(0, backend, fds) // after a kernel.Events told that they died
//	err = k.Disconnect(0)
//
// What the kernel does with it (drivers/block/nbd.c):
//
//   - With a DeadTimeout, requests wait for so long when all sockets are dead, and
//     fail after it. New sockets take the places of dead ones. If none is dead
//     they are ignored, without an error.
//   - A request that was sent is sent again when it is older than Timeout and its
//     socket is dead, no sooner.
//   - With several sockets, a request that is older than Timeout has its socket
//     declared dead.
//   - The number of sockets cannot grow. Sizes are never part of Reconfigure: the
//     kernel freezes the queue for them, which can deadlock with I/O.
//   - The backend identifier (Linux 5.14 and later) has Reconfigure refused for a
//     device of somebody else.
//
// The layouts are those of the kernel's include/uapi/linux/nbd-netlink.h.
package kernel
