package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const (
	peekSize = 64 << 10
	// maxWindow bounds the memory a compressed file can ask for.
	maxWindow = 128 << 20
)

// Open opens the trace at path and finds out its compression and format. The
// error wraps ErrUnknownFormat if it is none that is known.
func Open(path string) (Reader, error) { return OpenFormat(path, "") }

// OpenFormat opens the trace at path, which is of the given format ("" to detect it).
func OpenFormat(path string, f Format) (Reader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	r, err := NewReader(file, filepath.Base(path), f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open trace %s: %w", path, err), file.Close())
	}
	rr := r.(*reader)
	rr.closers = append([]io.Closer{file}, rr.closers...)
	return rr, nil
}

// NewReader reads a trace from src. name is what its file was called and helps
// to tell the formats apart; f is the format, or "" to detect it. Close does
// not close src.
func NewReader(src io.Reader, name string, f Format) (Reader, error) {
	plain, closer, name, err := decompress(bufio.NewReaderSize(src, peekSize), name)
	if err != nil {
		return nil, err
	}
	buf := bufio.NewReaderSize(plain, peekSize)
	// A short file peeks less, and a damaged one fails in its first record.
	head, _ := buf.Peek(peekSize)
	if f == "" {
		f = Detect(name, head)
	}
	p, err := newParser(f, buf, head)
	if err != nil {
		if closer != nil {
			err = errors.Join(err, closer.Close())
		}
		return nil, err
	}
	r := &reader{p: p, format: f}
	if closer != nil {
		r.closers = append(r.closers, closer)
	}
	return r, nil
}

func newParser(f Format, buf *bufio.Reader, head []byte) (parser, error) {
	switch f {
	case VSCSI:
		return &vscsiParser{r: buf}, nil
	case Pages:
		return &pagesParser{r: buf}, nil
	case ARC:
		return &arcParser{lines{r: buf}}, nil
	case MSR:
		return &msrParser{lines{r: buf}}, nil
	case SPC:
		return &spcParser{lines{r: buf}}, nil
	case Iolog:
		return newIologParser(buf, head)
	case Blkparse:
		return newBlkparseParser(buf, head), nil
	case MQSim:
		return &mqsimParser{lines{r: buf}}, nil
	case Tierd:
		return newRecordedParser(buf)
	case "":
		return nil, ErrUnknownFormat
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownFormat, string(f))
}

// decompress returns the bytes inside buf, what must be closed to release the
// decoder (or nil), and the name without the ending of the compression.
func decompress(buf *bufio.Reader, name string) (io.Reader, io.Closer, string, error) {
	magic, err := buf.Peek(6)
	if err != nil && err != io.EOF {
		return nil, nil, name, fmt.Errorf("read trace: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// One decoder goroutine fewer and a bounded window: constant memory.
		d, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, name, fmt.Errorf("read zstd: %w", err)
		}
		rc := d.IOReadCloser()
		return rc, rc, trimExt(name, ".zst", ".zstd"), nil
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		src := &xzSource{r: buf}
		d, err := xz.NewReader(src)
		if err != nil {
			return nil, nil, name, fmt.Errorf("read xz: %w", err)
		}
		return &xzReader{d, src}, nil, trimExt(name, ".xz"), nil
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		d, err := gzip.NewReader(buf)
		if err != nil {
			return nil, nil, name, fmt.Errorf("read gzip: %w", err)
		}
		return d, d, trimExt(name, ".gz", ".gzip"), nil
	}
	return buf, nil, name, nil
}

// xzSource remembers the last two bytes read that are not zero.
type xzSource struct {
	r    io.Reader
	last [2]byte
}

func (s *xzSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	for i, found := n-1, 0; i >= 0 && found < 2; i-- {
		switch {
		case p[i] == 0:
		case found == 0:
			s.last = [2]byte{s.last[1], p[i]}
			found++
		default:
			s.last[0] = p[i]
			found++
		}
	}
	return n, err
}

// xzReader tells a file that was cut short, which the decoder takes for a whole
// one if only the footer is torn: a footer ends in "YZ", and padding is zeroes.
type xzReader struct {
	d   io.Reader
	src *xzSource
}

func (x *xzReader) Read(p []byte) (int, error) {
	n, err := x.d.Read(p)
	if err == io.EOF && x.src.last != [2]byte{'Y', 'Z'} {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func trimExt(name string, exts ...string) string {
	for _, e := range exts {
		if s, ok := strings.CutSuffix(name, e); ok {
			return s
		}
	}
	return name
}

// Detect returns the format of a trace that begins with head (64 KiB are
// plenty) and whose file, without the ending of a compression, is called name;
// "" if it looks like none. The content decides; the name does where a binary
// file has nothing to be recognised by.
func Detect(name string, head []byte) Format {
	if bytes.HasPrefix(head, []byte(recordedMagic)) {
		return Tierd
	}
	if isVSCSI(head) {
		return VSCSI
	}
	if f := detectText(head); f != "" {
		return f
	}
	if isMQSim(head) || strings.EqualFold(filepath.Ext(name), ".mqsim") && parsesAs(MQSim, firstLine(head)) {
		return MQSim
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".trace", ".pages", ".i32":
		if isPages(head) {
			return Pages
		}
	}
	return ""
}

// isVSCSI looks at the version and the operation code of the first records.
func isVSCSI(head []byte) bool {
	n := min(len(head)/vscsiSize, 64)
	if n == 0 {
		return false
	}
	for i := range n {
		rec := head[i*vscsiSize:]
		if rec[15] != 1 || rec[13] != 0 {
			return false
		}
	}
	return true
}

func isPages(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	for ; len(head) >= 4; head = head[4:] {
		if int32(binary.LittleEndian.Uint32(head)) < 0 {
			return false
		}
	}
	return true
}

// detectText tries the first line that is not empty, and the second if the
// first may be a heading.
func detectText(head []byte) Format {
	tried := 0
	for tried < 2 && len(head) > 0 {
		line, rest, whole := bytes.Cut(head, []byte{'\n'})
		head = rest
		line = bytes.TrimSpace(line)
		if !whole && len(line) > maxLine {
			return ""
		}
		if len(line) == 0 {
			continue
		}
		tried++
		s := string(line)
		if _, err := iologVersion(s); err == nil {
			return Iolog
		}
		for _, f := range []Format{Blkparse, MSR, SPC, ARC} {
			if parsesAs(f, s) {
				return f
			}
		}
	}
	return ""
}

func firstLine(head []byte) string {
	line, _, _ := bytes.Cut(head, []byte{'\n'})
	return string(line)
}

func parsesAs(f Format, line string) bool {
	var err error
	switch f {
	case Blkparse:
		_, err = parseEvent(line)
	case MQSim:
		_, err = parseMQSim(line)
	case MSR:
		_, err = parseMSR(line)
	case SPC:
		_, err = parseSPC(line)
	case ARC:
		_, err = parseARC(line)
	}
	return err == nil
}
