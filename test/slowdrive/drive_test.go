package slowdrive_test

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"tierd/test/fuseproc"
	"tierd/test/slowdrive"
)

func TestMain(m *testing.M) {
	slowdrive.Main()
	os.Exit(m.Run())
}

// TestDrive: what is written is there, and takes at least the time it should.
func TestDrive(t *testing.T) {
	d, err := slowdrive.Start(t.TempDir(), slowdrive.Options{Size: 64 << 20, IOPS: 200, Bandwidth: 100e6, MaxDirty: 1 << 20})
	if errors.Is(err, fuseproc.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const n = 40
	block := bytes.Repeat([]byte{7}, 4096)
	start := time.Now()
	for i := range int64(n) {
		if _, err := f.WriteAt(block, i*7919%16000*4096); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < n*time.Second/200*9/10 {
		t.Errorf("%d random writes took %v: more than 200 a second", n, took)
	}
	got := make([]byte, 4096)
	if _, err := f.ReadAt(got, 7919*4096); err != nil || !bytes.Equal(got, block) {
		t.Errorf("what was written is not there (%v)", err)
	}
}
