package nbd

import (
	"crypto/tls"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/nbd/wire"
)

// idleConns is how many connections a test of their memory opens: a thousand, where
// each may have its two descriptors in this process.
func idleConns(t testing.TB) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return min(1000, (int(min(limit.Cur, 1<<20))-100)/2)
}

func memoryInUse() int64 {
	runtime.GC()
	runtime.GC() // the second empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestIdleConnectionsAreSmall: a connection that waits for its client costs less than
// 64 KiB, in whatever phase it is, and before GO it has opened nothing (CVE-2019-14850). The client's side
// is in this process too: without TLS it is in the figure, with TLS it is measured apart,
// by a second session that is as large.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const most = 64 << 10
	if testing.Short() {
		t.Skip("thousands of connections are left out of -short")
	}
	ca := newCA(t)
	exports := func() *memExports {
		e := newMemExports()
		d := newMemDevice(1 << 20)
		for i := range 500 {
			e.add(ExportInfo{Name: fmt.Sprintf("export-%d", i), Description: strings.Repeat("d", 200)}, d)
		}
		return e
	}
	long := wire.AppendInfoRequest(nil, strings.Repeat("n", 4096))
	for _, c := range []struct {
		name   string
		tls    bool
		opens  bool
		sits   func(r *raw)
		spread int64 // how many times a side of the connection is in this process
	}{
		{"before the client's flags", false, false, func(*raw) {}, 1},
		{"in an option's header", false, false, func(r *raw) { r.hello(bothFlags).send(option(wire.OptGo, nil)[:9]) }, 1},
		{"in an option's data", false, false, func(r *raw) { r.hello(bothFlags).send(option(wire.OptInfo, make([]byte, maxOptionData))[:3000]) }, 1},
		{"after LIST and refusals", false, false, func(r *raw) {
			r.hello(bothFlags)
			r.send(option(wire.OptList, nil))
			r.final(wire.OptList)
			r.send(option(wire.OptInfo, long))
			r.final(wire.OptInfo)
		}, 1},
		{"in the transmission, within a header", false, true, func(r *raw) {
			r.hello(bothFlags).goExport("export-7")
			r.inSync()
			r.send(message(wire.CmdRead, 0, 1, 0, 1)[:20])
		}, 1},
		{"in the TLS handshake", true, false, func(r *raw) {
			r.hello(bothFlags).send(option(wire.OptStartTLS, nil))
			r.final(wire.OptStartTLS)
			r.send([]byte{0x16, 3, 1, 2, 0, 1}) // the first of 512 bytes of a ClientHello
		}, 1},
		{"after LIST within TLS", true, false, func(r *raw) {
			s := r.hello(bothFlags).startTLS(ca.config())
			s.send(option(wire.OptList, nil))
			s.final(wire.OptList)
			keep(t, s)
		}, 2},
		{"in the transmission within TLS", true, true, func(r *raw) {
			s := r.hello(bothFlags).startTLS(ca.config())
			s.goExport("export-7")
			s.inSync()
			keep(t, s)
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := idleConns(t)
			e := exports()
			cfg := Config{Exports: e, HandshakeTimeout: time.Hour}
			var s *Server
			var connect func() *raw
			if c.tls {
				var addr string
				s, addr = serveTLS(t, ca, TLSRequire, tls.NoClientCert, cfg)
				connect = func() *raw { return dialTCP(t, addr) }
			} else {
				var path string
				s, path = serve(t, cfg)
				connect = func() *raw { return dial(t, path) }
			}
			before := memoryInUse()
			for range n {
				c.sits(connect())
			}
			var each int64
			eventually(t, "they are small", func() bool {
				each = (memoryInUse() - before) / int64(n) / c.spread
				return each < most
			})
			t.Logf("%d bytes each", each)
			eventually(t, "all are there", func() bool { return s.Snapshot().Open == n })
			want := 0
			if c.opens {
				want = n
			}
			if got := e.opened(); got != want {
				t.Errorf("%d exports were opened, want %d", got, want)
			}
		})
	}
}

// keep keeps a session in memory until the test ends.
func keep(t testing.TB, r *raw) { t.Cleanup(func() { runtime.KeepAlive(r) }) }
