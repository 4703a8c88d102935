package extentmap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// pageChecker verifies the tree of pages of a bbolt file by reading it as a
// plain file. bbolt's own check follows the numbers on a page through a memory
// mapping and in a goroutine of its own, so that a damaged page can end the
// process. It is run only on files that pass this one.
//
// A page has a header of 16 bytes (number u64, flags u16, count u16, overflow
// u32: how many pages follow as part of it), then count elements of 16 bytes,
// whose positions count from the element itself:
//
//	leaf:    flags u32 (1: the value is a bucket), position u32, key size u32, value size u32
//	branch:  position u32, key size u32, page u64
//
// A bucket is root page u64, sequence u64, and, if the root is 0, a page of
// its own. Integers are little-endian on all machines that tierd runs on.
type pageChecker struct {
	file     io.ReaderAt
	pageSize int64
	pages    uint64  // numbers at or above this were never used
	seen     pageSet // pages that something refers to
	report   func(format string, args ...any) bool
	problems int
}

// pageSet is a set of pages, one bit each.
type pageSet []uint64

func (s pageSet) has(p uint64) bool { return s[p/64]>>(p%64)&1 != 0 }
func (s pageSet) add(p uint64)      { s[p/64] |= 1 << (p % 64) }

const (
	pageHeader  = 16
	elementSize = 16
	bucketBytes = 16

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = 1<<64 - 1

	maxDepth    = 64      // of the tree; a healthy one of 10^9 keys has 8
	maxOverflow = 1 << 20 // pages in a row; a freelist of 4 GiB
)

// boltMeta is a root of the file: page 0 or 1.
type boltMeta struct {
	pageSize                    int64
	root, freelist, pages, txid uint64
}

// parseMeta returns the root in b, the beginning of a page.
func parseMeta(b []byte) (m boltMeta, ok bool) {
	b = b[pageHeader:]
	le := binary.LittleEndian
	h := fnv.New64a()
	h.Write(b[:56])
	if le.Uint32(b) != boltMagic || le.Uint32(b[4:]) != boltVersion || le.Uint64(b[56:]) != h.Sum64() {
		return m, false
	}
	m = boltMeta{pageSize: int64(le.Uint32(b[8:])), root: le.Uint64(b[16:]),
		freelist: le.Uint64(b[32:]), pages: le.Uint64(b[40:]), txid: le.Uint64(b[48:])}
	return m, m.pageSize >= 1024 && m.pageSize <= 64<<10 && m.pageSize&(m.pageSize-1) == 0
}

// checkPages reports what is wrong with the pages of a file of size bytes.
// A file without a valid root is not reported: Open says what that is.
func checkPages(file io.ReaderAt, size int64, report func(format string, args ...any) bool) (problems int) {
	m, roots := newestMeta(file)
	if roots == 0 {
		return 0
	}
	c := &pageChecker{file: file, pageSize: m.pageSize, pages: m.pages, report: report}
	if int64(m.pages) < 0 || int64(m.pages) > size/m.pageSize {
		c.problem("the file has %d bytes, and uses %d pages of %d", size, m.pages, m.pageSize)
		return c.problems
	}
	c.seen = make(pageSet, (m.pages+63)/64)
	c.seen.add(0)
	c.seen.add(1)
	c.walk(m.root, nil, nil, 0)
	if m.freelist != noFreelist {
		c.walkFreelist(m.freelist)
	}
	for p := uint64(0); p < m.pages && c.problems == 0; p++ {
		if !c.seen.has(p) {
			c.problem("page %d is neither used nor free", p)
		}
	}
	return c.problems
}

// newestMeta returns the valid root with the higher transaction number. The
// second one is at the page size, which the first one may not tell any more. It
// says how many of the two are valid.
func newestMeta(file io.ReaderAt) (best boltMeta, roots int) {
	b := make([]byte, 128)
	for _, at := range []int64{0, 1024, 2048, 4096, 8192, 16384, 32768, 65536} {
		if _, err := file.ReadAt(b, at); err != nil {
			continue
		}
		if m, valid := parseMeta(b); valid && (at == 0 || at == m.pageSize) {
			if roots++; roots == 1 || m.txid > best.txid {
				best = m
			}
		}
	}
	return best, roots
}

func (c *pageChecker) problem(format string, args ...any) {
	c.problems++
	c.report("%s", fmt.Sprintf("pages: "+format, args...))
}

// page reads page id with what overflows from it, and notes that it is used.
// It returns nil if there is a problem.
func (c *pageChecker) page(id uint64) []byte {
	if id < 2 || id >= c.pages {
		c.problem("page %d does not exist", id)
		return nil
	}
	b := make([]byte, c.pageSize)
	if _, err := c.file.ReadAt(b, int64(id)*c.pageSize); err != nil {
		c.problem("page %d: %v", id, err)
		return nil
	}
	overflow := uint64(binary.LittleEndian.Uint32(b[12:]))
	if got := binary.LittleEndian.Uint64(b); got != id {
		c.problem("page %d says it is page %d", id, got)
		return nil
	}
	if overflow > maxOverflow || id+overflow >= c.pages {
		c.problem("page %d has %d pages behind it", id, overflow)
		return nil
	}
	for p := id; p <= id+overflow; p++ {
		if c.seen.has(p) {
			c.problem("page %d is used twice", p)
			return nil
		}
		c.seen.add(p)
	}
	b = append(b, make([]byte, int64(overflow)*c.pageSize)...)
	if _, err := c.file.ReadAt(b[c.pageSize:], int64(id+1)*c.pageSize); err != nil && overflow > 0 {
		c.problem("page %d: %v", id+1, err)
		return nil
	}
	return b
}

// walk checks the tree below page id, whose keys are at least low and below
// high, where given.
func (c *pageChecker) walk(id uint64, low, high []byte, depth int) {
	if depth > maxDepth {
		c.problem("page %d is more than %d pages deep", id, maxDepth)
		return
	}
	b := c.page(id)
	if b == nil {
		return
	}
	if low != nil && binary.LittleEndian.Uint16(b[10:]) == 0 {
		// bbolt gives up a page that has become empty, unless it is a root.
		c.problem("page %d has no elements", id)
		return
	}
	c.elements(b, id, low, high, depth)
}

// elements checks the elements of the page in b and what they refer to.
func (c *pageChecker) elements(b []byte, id uint64, low, high []byte, depth int) {
	le := binary.LittleEndian
	flags, count := le.Uint16(b[8:]), int(le.Uint16(b[10:]))
	if flags != flagBranch && flags != flagLeaf {
		c.problem("page %d has flags %#x", id, flags)
		return
	}
	if pageHeader+count*elementSize > len(b) || flags == flagBranch && count == 0 {
		c.problem("page %d has %d elements", id, count)
		return
	}
	type element struct {
		key, value []byte
		child      uint64
		bucket     bool
	}
	list := make([]element, count)
	// Keys and values lie behind the last element without a gap. It is what tells
	// of a count that lost a bit, and with it whole records.
	packed := uint64(pageHeader + count*elementSize)
	for i := range list {
		at := pageHeader + i*elementSize
		e := b[at:]
		pos, ksize, vsize := uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		if flags == flagBranch {
			pos, ksize, vsize = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), 0
			list[i].child = le.Uint64(e[8:])
		} else {
			list[i].bucket = le.Uint32(e)&flagBucket != 0
		}
		from := uint64(at) + pos
		if from+ksize+vsize > uint64(len(b)) {
			c.problem("page %d: element %d reaches past the page", id, i)
			return
		}
		if from != packed {
			c.problem("page %d: element %d is not where it should be", id, i)
			return
		}
		packed = from + ksize + vsize
		list[i].key, list[i].value = b[from:from+ksize], b[from+ksize:from+ksize+vsize]
		key := list[i].key
		// The first key of a branch may be above the low bound it has itself.
		if i > 0 && bytes.Compare(list[i-1].key, key) >= 0 ||
			low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
			c.problem("page %d: key %x of element %d is out of order", id, key, i)
			return
		}
	}
	for i, e := range list {
		switch {
		case flags == flagBranch:
			below := high
			if i+1 < len(list) {
				below = list[i+1].key
			}
			c.walk(e.child, e.key, below, depth+1)
		case e.bucket && len(e.value) < bucketBytes:
			c.problem("page %d: bucket %q has %d bytes", id, e.key, len(e.value))
		case e.bucket && le.Uint64(e.value) != 0:
			c.walk(le.Uint64(e.value), nil, nil, depth+1)
		case e.bucket && len(e.value) < bucketBytes+pageHeader:
			c.problem("page %d: bucket %q has no page", id, e.key)
		case e.bucket:
			c.elements(e.value[bucketBytes:], id, nil, nil, depth+1)
		}
	}
}

// walkFreelist checks that no page is both used and free.
func (c *pageChecker) walkFreelist(id uint64) {
	b := c.page(id)
	if b == nil {
		return
	}
	if flags := binary.LittleEndian.Uint16(b[8:]); flags != flagFreelist {
		c.problem("page %d is no list of free pages (flags %#x)", id, flags)
		return
	}
	count, ids := uint64(binary.LittleEndian.Uint16(b[10:])), b[pageHeader:]
	if count == 0xFFFF {
		count, ids = binary.LittleEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		c.problem("page %d lists %d free pages", id, count)
		return
	}
	for i := range count {
		p := binary.LittleEndian.Uint64(ids[i*8:])
		if p < 2 || p >= c.pages || c.seen.has(p) {
			c.problem("page %d is listed as free, and is in use, twice free or not there", p)
			continue
		}
		c.seen.add(p)
	}
}
