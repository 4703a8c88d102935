package backing

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// ReaderAt returns s as an io.ReaderAt whose calls run under ctx.
func ReaderAt(ctx context.Context, s Store) io.ReaderAt { return storeReader{ctx, s} }

type storeReader struct {
	ctx context.Context
	s   Store
}

func (r storeReader) ReadAt(p []byte, off int64) (int, error) {
	if err := r.s.ReadAt(r.ctx, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// FindSignature looks for what must not be overwritten by accident: file
// systems, partition tables, members of volume managers, RAIDs and pools,
// encrypted devices, swap, disk images and databases. r holds size bytes. It
// returns the name of the first that it finds, "" if there is none, or the
// error of a read. It knows signatures, not whether what follows them is whole.
func FindSignature(ctx context.Context, r io.ReaderAt, size int64) (name string, err error) {
	p, err := newProbe(ctx, r, size)
	if err != nil {
		return "", fmt.Errorf("look for signatures: %w", err)
	}
	for _, sig := range signatures {
		for _, off := range sig.at(size) {
			if p.has(off, sig.magic) && (sig.also == nil || sig.also(p, off)) {
				return sig.name, nil
			}
			if p.err != nil {
				return "", fmt.Errorf("look for signatures: %w", p.err)
			}
		}
	}
	return "", nil
}

// A signature is a magic number at one of several places.
type signature struct {
	name  string
	magic string
	at    func(size int64) []int64
	also  func(p *probe, off int64) bool // what else must hold; nil for nothing
}

// from returns places counted from the start.
func from(offs ...int64) func(int64) []int64 {
	return func(int64) []int64 { return offs }
}

// beforeEnd returns places counted back from the end.
func beforeEnd(offs ...int64) func(int64) []int64 {
	return func(size int64) []int64 {
		places := make([]int64, len(offs))
		for i, o := range offs {
			places[i] = size - o
		}
		return places
	}
}

// signatures is ordered so that the more telling name comes first: a GPT has a
// protective MBR in front, and a FAT boot sector ends like an MBR. Each group
// says where its offsets are documented.
var signatures = []signature{
	// UEFI specification, chapter 5.3: the header is in block 1, its backup in
	// the last block; blocks of 512 or 4096 bytes.
	{name: "GPT partition table", magic: "EFI PART", at: from(512, 4096)},
	{name: "backup GPT partition table", magic: "EFI PART", at: beforeEnd(512, 4096)},

	// Linux Documentation/filesystems/ext4/super.rst: superblock at 1024, s_magic at 0x38.
	{name: "ext2/ext3/ext4 file system", magic: "\x53\xef", at: from(1024 + 0x38)},
	// XFS Algorithms & Data Structures, "Superblocks": sb_magicnum at 0, big-endian.
	{name: "xfs file system", magic: "XFSB", at: from(0)},
	// btrfs on-disk format, "Superblock": copy at 64 KiB, magic at 0x40.
	{name: "btrfs file system", magic: "_BHRfS_M", at: from(64<<10 + 0x40)},
	// Linux include/linux/f2fs_fs.h: F2FS_SUPER_OFFSET 1024, in blocks 0 and 1.
	{name: "f2fs file system", magic: "\x10\x20\xf5\xf2", at: from(1024, 4096+1024)},
	// Linux fs/erofs/erofs_fs.h: EROFS_SUPER_OFFSET 1024.
	{name: "erofs file system", magic: "\xe2\xe1\xf5\xe0", at: from(1024)},
	// Linux fs/squashfs/squashfs_fs.h: s_magic at 0.
	{name: "squashfs file system", magic: "hsqs", at: from(0)},
	// Boot sectors: the OEM name is at 3 (NTFS, exFAT specification 3.1.2,
	// BitLocker); Microsoft FAT specification 3.1 to 3.3: BS_FilSysType at 54 and 82.
	{name: "ntfs file system", magic: "NTFS    ", at: from(3)},
	{name: "exfat file system", magic: "EXFAT   ", at: from(3)},
	{name: "BitLocker volume", magic: "-FVE-FS-", at: from(3)},
	{name: "vfat file system", magic: "FAT", at: from(54, 82), also: hasBootMark},
	// ECMA-119 8.1: volume descriptors begin at sector 16 of 2048 bytes.
	{name: "iso9660 file system", magic: "CD001", at: from(16*2048 + 1)},
	// Linux include/linux/swap.h: the magic ends the first page, of 4 to 64 KiB.
	{name: "swap space", magic: "SWAPSPACE2", at: from(4096-10, 8192-10, 16384-10, 65536-10)},
	{name: "swap space", magic: "SWAP-SPACE", at: from(4096-10, 8192-10, 16384-10, 65536-10)},

	// LVM2 lib/label/label.h: a label in one of the first four sectors, type at 24.
	{name: "LVM2 physical volume", magic: "LABELONE", at: from(0, 512, 1024, 1536), also: isLVM2},
	// LUKS1 specification, table 2; LUKS2 specification 2.1: the second header
	// has another magic and follows the first, which is 16 KiB to 4 MiB long.
	{name: "LUKS encrypted device", magic: "LUKS\xba\xbe", at: from(0)},
	{name: "LUKS encrypted device (second header)", magic: "SKUL\xba\xbe", at: from(
		0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000)},
	// Linux include/uapi/linux/raid/md_p.h. 0.90: 64 KiB before the end rounded
	// down to 64 KiB, byte order of the host. 1.0: 8 KiB before the end, rounded
	// down to 4 KiB; 1.1: at 0; 1.2: at 4 KiB; little-endian.
	{name: "Linux RAID member (0.90)", magic: "\xfc\x4e\x2b\xa9", at: md090},
	{name: "Linux RAID member (0.90)", magic: "\xa9\x2b\x4e\xfc", at: md090},
	{name: "Linux RAID member (1.x)", magic: "\xfc\x4e\x2b\xa9", at: md1},
	// ZFS On-Disk Specification 1.3: four labels of 256 KiB, two at each end of
	// the size rounded down to 256 KiB; in each a ring of uberblocks at 128 KiB,
	// in slots of 1 KiB or more, of either byte order.
	{name: "ZFS pool member", magic: "\x0c\xb1\xba\x00\x00\x00\x00\x00", at: zfsUberblocks},
	{name: "ZFS pool member", magic: "\x00\x00\x00\x00\x00\xba\xb1\x0c", at: zfsUberblocks},
	// Linux include/uapi/linux/bcache.h and fs/bcachefs: superblock in sector 8, magic at 24.
	{name: "bcache device", magic: "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", at: from(4096 + 24)},
	{name: "bcachefs file system", magic: "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", at: from(4096 + 24)},
	// Ceph src/os/bluestore/BlueStore.cc: the label begins with this line.
	{name: "Ceph bluestore device", magic: "bluestore block device\n", at: from(0)},
	// Linux drivers/md/dm-vdo: the geometry block is block 0.
	{name: "VDO volume", magic: "dmvdo001", at: from(0)},

	// Images. qcow2: QEMU docs/interop/qcow2.rst. VMDK: Virtual Disk Format 5.0,
	// sparse extent header and embedded or separate descriptor. VHDX: [MS-VHDX] 2.2.1.
	{name: "qcow image", magic: "QFI\xfb", at: from(0)},
	{name: "VMDK image", magic: "KDMV", at: from(0)},
	{name: "VMDK image", magic: "COWD", at: from(0)},
	{name: "VMDK descriptor", magic: "# Disk DescriptorFile", at: from(0)},
	{name: "VHDX image", magic: "vhdxfile", at: from(0)},
	// bbolt db.go and internal/common: two meta pages (flag 4) at 0 and one page
	// on, magic after the 16 bytes of page header, byte order of the host.
	{name: "bbolt database", magic: "\xed\xda\x0c\xed", at: from(16, 4096+16, 16384+16, 65536+16), also: isBoltMeta},

	// Any boot sector that has no better name; partitions begin at 446.
	{name: "MBR partition table or boot sector", magic: "\x55\xaa", at: from(510)},
}

func md090(size int64) []int64 { return []int64{size&^0xffff - 64<<10} }

func md1(size int64) []int64 { return []int64{0, 4096, (size/512 - 16) &^ 7 * 512} }

func zfsUberblocks(size int64) []int64 {
	const label, ring = 256 << 10, 128 << 10
	end := size / label * label
	var places []int64
	for _, l := range []int64{0, label, end - 2*label, end - label} {
		for slot := int64(0); slot < ring; slot += 1024 {
			places = append(places, l+ring+slot)
		}
	}
	return places
}

// hasBootMark: a FAT boot sector ends in 55 AA and has a sane number of sectors
// per cluster, a power of two, at 13.
func hasBootMark(p *probe, _ int64) bool {
	b := p.bytes(13, 1)
	return p.has(510, "\x55\xaa") && b != nil && b[0] != 0 && b[0]&(b[0]-1) == 0
}

func isLVM2(p *probe, off int64) bool { return p.has(off+24, "LVM2 001") }

func isBoltMeta(p *probe, off int64) bool {
	flags := p.bytes(off-16+8, 2)
	return flags != nil && binary.LittleEndian.Uint16(flags)&4 != 0
}

// probe reads the two ends at once, and what lies between as asked.
type probe struct {
	r          io.ReaderAt
	size       int64
	head, tail []byte
	err        error // the first failed read
}

// probeEnd covers what nearly all signatures need: two ZFS labels.
const probeEnd = 512 << 10

func newProbe(ctx context.Context, r io.ReaderAt, size int64) (*probe, error) {
	p := &probe{r: r, size: size}
	n := min(size, probeEnd)
	p.head, p.tail = make([]byte, n), make([]byte, min(size, 2*probeEnd))
	for _, part := range []struct {
		b   []byte
		off int64
	}{{p.head, 0}, {p.tail, size - int64(len(p.tail))}} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := readFullAt(r, part.b, part.off); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func readFullAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil // io.EOF may come with the last byte
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// bytes returns n bytes at off, nil if they are not all there.
func (p *probe) bytes(off int64, n int) []byte {
	end := off + int64(n)
	tail := p.size - int64(len(p.tail))
	switch {
	case off < 0 || end > p.size || p.err != nil:
		return nil
	case end <= int64(len(p.head)):
		return p.head[off:end]
	case off >= tail:
		return p.tail[off-tail : end-tail]
	}
	b := make([]byte, n)
	if p.err = readFullAt(p.r, b, off); p.err != nil {
		return nil
	}
	return b
}

func (p *probe) has(off int64, magic string) bool {
	b := p.bytes(off, len(magic))
	return b != nil && bytes.Equal(b, []byte(magic))
}
