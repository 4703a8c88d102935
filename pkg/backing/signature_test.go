package backing_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tierd/pkg/backing"
)

// patch is bytes at an offset; a negative offset counts from the end.
type patch struct {
	off  int64
	data string
}

func TestFindSignature(t *testing.T) {
	const size = 16<<20 + 5*4096
	const md = "\xfc\x4e\x2b\xa9"
	for _, tt := range []struct {
		name    string
		patches []patch
		want    string
	}{
		{"empty", nil, ""},
		{"ext4", []patch{{1080, "\x53\xef"}}, "ext2/ext3/ext4 file system"},
		{"xfs", []patch{{0, "XFSB"}}, "xfs file system"},
		{"btrfs", []patch{{65600, "_BHRfS_M"}}, "btrfs file system"},
		{"f2fs", []patch{{1024, "\x10\x20\xf5\xf2"}}, "f2fs file system"},
		{"f2fs second copy", []patch{{5120, "\x10\x20\xf5\xf2"}}, "f2fs file system"},
		{"erofs", []patch{{1024, "\xe2\xe1\xf5\xe0"}}, "erofs file system"},
		{"squashfs", []patch{{0, "hsqs"}}, "squashfs file system"},
		{"ntfs", []patch{{0, "\xeb\x52\x90NTFS    "}, {510, "\x55\xaa"}}, "ntfs file system"},
		{"exfat", []patch{{0, "\xeb\x76\x90EXFAT   "}, {510, "\x55\xaa"}}, "exfat file system"},
		{"bitlocker", []patch{{3, "-FVE-FS-"}, {510, "\x55\xaa"}}, "BitLocker volume"},
		{"fat16", []patch{{13, "\x04"}, {54, "FAT16   "}, {510, "\x55\xaa"}}, "vfat file system"},
		{"fat32", []patch{{13, "\x08"}, {82, "FAT32   "}, {510, "\x55\xaa"}}, "vfat file system"},
		{"fat without boot mark", []patch{{13, "\x08"}, {82, "FAT32   "}}, ""},
		{"iso9660", []patch{{32768, "\x01CD001"}}, "iso9660 file system"},
		{"swap", []patch{{4086, "SWAPSPACE2"}}, "swap space"},
		{"swap of 64 KiB pages", []patch{{65526, "SWAPSPACE2"}}, "swap space"},
		{"swap 0", []patch{{4086, "SWAP-SPACE"}}, "swap space"},
		{"lvm2", []patch{{512, "LABELONE"}, {536, "LVM2 001"}}, "LVM2 physical volume"},
		{"label of another kind", []patch{{512, "LABELONE"}, {536, "LVM9 001"}}, ""},
		{"luks", []patch{{0, "LUKS\xba\xbe\x00\x02"}}, "LUKS encrypted device"},
		{"luks2 second header", []patch{{0x4000, "SKUL\xba\xbe"}}, "LUKS encrypted device (second header)"},
		{"luks2 far second header", []patch{{0x400000, "SKUL\xba\xbe"}}, "LUKS encrypted device (second header)"},
		{"md 0.90", []patch{{16<<20 - 64<<10, md}}, "Linux RAID member (0.90)"},
		{"md 0.90 big-endian", []patch{{16<<20 - 64<<10, "\xa9\x2b\x4e\xfc"}}, "Linux RAID member (0.90)"},
		{"md 1.0", []patch{{-8192, md}}, "Linux RAID member (1.x)"},
		{"md 1.1", []patch{{0, md}}, "Linux RAID member (1.x)"},
		{"md 1.2", []patch{{4096, md}}, "Linux RAID member (1.x)"},
		{"zfs first label", []patch{{128<<10 + 7*1024, "\x0c\xb1\xba\x00\x00\x00\x00\x00"}}, "ZFS pool member"},
		{"zfs last label", []patch{{16<<20 - 128<<10 + 1024, "\x00\x00\x00\x00\x00\xba\xb1\x0c"}}, "ZFS pool member"},
		{"bcache", []patch{{4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}}, "bcache device"},
		{"bcachefs", []patch{{4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"}}, "bcachefs file system"},
		{"bluestore", []patch{{0, "bluestore block device\n"}}, "Ceph bluestore device"},
		{"vdo", []patch{{0, "dmvdo001"}}, "VDO volume"},
		{"mbr", []patch{{446 + 4, "\x83"}, {510, "\x55\xaa"}}, "MBR partition table or boot sector"},
		{"gpt behind its mbr", []patch{{510, "\x55\xaa"}, {512, "EFI PART"}}, "GPT partition table"},
		{"gpt of 4 KiB sectors", []patch{{4096, "EFI PART"}}, "GPT partition table"},
		{"backup gpt", []patch{{-512, "EFI PART"}}, "backup GPT partition table"},
		{"qcow2", []patch{{0, "QFI\xfb\x00\x00\x00\x03"}}, "qcow image"},
		{"vmdk", []patch{{0, "KDMV"}}, "VMDK image"},
		{"vmdk of esx", []patch{{0, "COWD"}}, "VMDK image"},
		{"vmdk descriptor", []patch{{0, "# Disk DescriptorFile\n"}}, "VMDK descriptor"},
		{"vhdx", []patch{{0, "vhdxfile"}}, "VHDX image"},
		{"bbolt", []patch{{8, "\x04\x00"}, {16, "\xed\xda\x0c\xed\x02\x00"}}, "bbolt database"},
		{"bbolt second meta page", []patch{{4096 + 8, "\x04\x00"}, {4096 + 16, "\xed\xda\x0c\xed"}}, "bbolt database"},
		{"bbolt magic in no meta page", []patch{{16, "\xed\xda\x0c\xed"}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := backing.NewMem(size)
			for _, p := range tt.patches {
				off := p.off
				if off < 0 {
					off += size
				}
				if err := m.WriteAt(context.Background(), []byte(p.data), off); err != nil {
					t.Fatal(err)
				}
			}
			checkSignature(t, m, tt.want)
		})
	}
}

func checkSignature(t *testing.T, s backing.Store, want string) {
	t.Helper()
	got, err := backing.FindSignature(context.Background(), backing.ReaderAt(context.Background(), s), s.Size())
	if err != nil || got != want {
		t.Errorf("FindSignature = %q, %v; want %q, nil", got, err, want)
	}
}

func TestFindSignatureSmallAndBroken(t *testing.T) {
	for _, size := range []int{0, 1, 511, 512, 1081, 4096, 64 << 10, 600 << 10} {
		got, err := backing.FindSignature(context.Background(), bytes.NewReader(make([]byte, size)), int64(size))
		if got != "" || err != nil {
			t.Errorf("FindSignature of %d zeroes = %q, %v; want nothing", size, got, err)
		}
	}
	if _, err := backing.FindSignature(context.Background(), bytes.NewReader(nil), 4096); err == nil {
		t.Error("FindSignature of a short reader reports no error")
	}
	m := backing.NewMem(4096)
	m.Close()
	if _, err := backing.FindSignature(context.Background(), backing.ReaderAt(context.Background(), m), 4096); !errors.Is(err, backing.ErrClosed) {
		t.Errorf("FindSignature of a closed Store = %v, want ErrClosed", err)
	}
}

func FuzzFindSignature(f *testing.F) {
	f.Add(make([]byte, 2048), int64(1<<20))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		size = max(int64(len(head)), size%(4<<20))
		m := backing.NewMem(size)
		if err := m.WriteAt(context.Background(), head, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := backing.FindSignature(context.Background(), backing.ReaderAt(context.Background(), m), size); err != nil {
			t.Errorf("FindSignature: %v", err)
		}
	})
}

// TestFindSignatureOfRealTools formats files with the tools that are there.
func TestFindSignatureOfRealTools(t *testing.T) {
	for _, tt := range []struct {
		tool, want string
		args       []string
	}{
		{"mkfs.ext4", "ext2/ext3/ext4 file system", []string{"-q", "-F"}},
		{"mkfs.xfs", "xfs file system", []string{"-q", "-f"}},
		{"mkfs.btrfs", "btrfs file system", []string{"-q", "-f"}},
		{"mkfs.vfat", "vfat file system", nil},
		{"mkswap", "swap space", nil},
	} {
		t.Run(tt.tool, func(t *testing.T) {
			tool, err := exec.LookPath(tt.tool)
			if err != nil {
				t.Skipf("needs %s", tt.tool)
			}
			path := newImage(t, 320<<20)
			if out, err := exec.Command(tool, append(tt.args, path)...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", tt.tool, err, out)
			}
			checkSignature(t, mustOpen(t, backing.Options{Path: path}), tt.want)
		})
	}
}

// newImage makes a sparse file.
func newImage(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}
