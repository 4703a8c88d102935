// Package faultfs is a pass-through file system whose files fail on command: with an
// error of an operation, after a delay, by writing less than was asked for, for want
// of space, or all at once, as a device does that is pulled out. It stands for a
// failing disk under a daemon that runs as a process of its own.
//
// Files lie in a folder of another file system and are seen through a mount. A
// process of its own serves the mount: the test binary once more, whose TestMain
// calls Main first. It ends, and takes the mount away, when the one that started it
// does, however that ends. A page fault on a mapped file can be served that way,
// too, whatever the race detector or the collector have stopped.
//
// Writes go through to the files at once; reads come from the page cache until a
// fault of reading is set, which empties it. So a mapped page can become unreadable
// under its user.
package faultfs
