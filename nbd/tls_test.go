package nbd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// A testCA signs certificates.
type testCA struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newCA(t testing.TB) *testCA {
	t.Helper()
	ca := &testCA{t: t, pool: x509.NewCertPool()}
	ca.key, ca.cert, _ = ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	ca.pool.AddCert(ca.cert)
	return ca
}

func (ca *testCA) sign(c *x509.Certificate, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate, tls.Certificate) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return key, cert, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (ca *testCA) server() tls.Certificate {
	_, _, c := ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}}, ca.cert, ca.key)
	return c
}

func (ca *testCA) client(name string) tls.Certificate {
	_, _, c := ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca.cert, ca.key)
	return c
}

// serveTLS starts a Server with TLS on a TCP address, ended with the test.
func serveTLS(t testing.TB, ca *testCA, mode TLSMode, auth tls.ClientAuthType, cfg Config) (*Server, string) {
	t.Helper()
	cert := ca.server()
	cfg.TLS = mode
	cfg.TLSConfig = func() *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: ca.pool, ClientAuth: auth}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, cfg, l)
	return s, l.Addr().String()
}

func dialTCP(t testing.TB, addr string) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return &raw{t, nc}
}

// startTLS has the connection go on within TLS.
func (r *raw) startTLS(cfg *tls.Config) *raw {
	r.t.Helper()
	r.send(option(wire.OptStartTLS, nil))
	if got := r.final(wire.OptStartTLS); got != wire.RepAck {
		r.t.Fatalf("STARTTLS: got %s", wire.ReplyName(got))
	}
	session := tls.Client(r.nc, cfg)
	if err := session.Handshake(); err != nil {
		r.t.Fatalf("TLS: %v", err)
	}
	return &raw{r.t, session}
}

func (ca *testCA) config(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: ca.pool, ServerName: "localhost", Certificates: certs}
}

func (r *raw) goExport(name string) wire.Reply {
	r.t.Helper()
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, name)))
	return r.final(wire.OptGo)
}

func TestTLSModes(t *testing.T) {
	ca := newCA(t)
	for _, tc := range []struct {
		mode            TLSMode
		plain, startTLS wire.Reply
	}{
		{TLSOff, wire.RepAck, wire.RepErrUnsup},
		{TLSAllow, wire.RepAck, wire.RepAck},
		{TLSRequire, wire.RepErrTLSReqd, wire.RepAck},
	} {
		_, addr := serveTLS(t, ca, tc.mode, tls.NoClientCert, Config{Exports: threeExports()})
		for _, opt := range [][]byte{
			option(wire.OptGo, wire.AppendInfoRequest(nil, "a")), option(wire.OptInfo, wire.AppendInfoRequest(nil, "a")),
			option(wire.OptList, nil), option(wire.OptStructuredReply, nil),
		} {
			r := dialTCP(t, addr).hello(bothFlags)
			r.send(opt)
			if got := r.final(wire.ParseOption(opt).ID); got != tc.plain {
				t.Errorf("mode %d, option %d: got %s, want %s", tc.mode, wire.ParseOption(opt).ID, wire.ReplyName(got), wire.ReplyName(tc.plain))
			}
		}
		r := dialTCP(t, addr).hello(bothFlags)
		r.send(option(wire.OptExportName, []byte("a")))
		if tc.mode == TLSRequire {
			r.closed()
		} else {
			r.recv(10)
		}
		r = dialTCP(t, addr).hello(bothFlags)
		r.send(option(wire.OptAbort, nil))
		if got := r.final(wire.OptAbort); got != wire.RepAck {
			t.Errorf("mode %d: ABORT: got %s", tc.mode, wire.ReplyName(got))
		}
		r = dialTCP(t, addr).hello(bothFlags)
		r.send(option(wire.OptStartTLS, []byte{1}))
		want := wire.RepErrInvalid
		if tc.mode == TLSOff {
			want = wire.RepErrUnsup
		}
		if got := r.final(wire.OptStartTLS); got != want {
			t.Errorf("mode %d: STARTTLS with data: got %s, want %s", tc.mode, wire.ReplyName(got), wire.ReplyName(want))
		}
		if tc.mode == TLSOff {
			continue
		}
		r = r.startTLS(ca.config()) // the refusal has left it in sync
		r.send(option(wire.OptStartTLS, nil))
		if got := r.final(wire.OptStartTLS); got != wire.RepErrInvalid {
			t.Errorf("mode %d: STARTTLS twice: got %s", tc.mode, wire.ReplyName(got))
		}
		if got := r.goExport("a"); got != wire.RepAck {
			t.Errorf("mode %d: GO within TLS: got %s", tc.mode, wire.ReplyName(got))
		}
		r.inSync()
	}
}

// TestTransmissionWithinTLS: all ways of reading and writing, and a good end.
func TestTransmissionWithinTLS(t *testing.T) {
	ca := newCA(t)
	d := newMemDevice(40 << 20)
	fill(d.data, 9)
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	s, addr := serveTLS(t, ca, TLSRequire, tls.NoClientCert, Config{Exports: e})
	r := dialTCP(t, addr).hello(bothFlags).startTLS(ca.config())
	if got := r.goExport("a"); got != wire.RepAck {
		t.Fatal(wire.ReplyName(got))
	}
	for i, n := range []int{1, 4096, inlineWrite, inlineWrite + 1, inlineRead + 1, inputSize, 3<<20 + 1, wire.MaxPayload} {
		for _, miss := range []bool{false, true} {
			d.miss.Store(miss)
			p := fill(make([]byte, n), byte(i))
			go r.nc.Write(append(message(wire.CmdWrite, 0, 1, 5, uint32(n)), p...))
			r.want(1, wire.OK)
			r.send(message(wire.CmdRead, 0, 2, 5, uint32(n)))
			r.wantData(2, p)
		}
	}
	// Requests in small pieces, and many in one.
	for _, c := range message(wire.CmdWrite, 0, 3, 0, 3, 1, 2, 3) {
		r.send([]byte{c})
	}
	r.want(3, wire.OK)
	var b []byte
	for i := range 2000 {
		b = append(b, message(wire.CmdRead, 0, uint64(i), uint64(i), 100)...)
	}
	d.miss.Store(false)
	go r.nc.Write(b)
	for i := range 2000 {
		r.wantData(uint64(i), d.data[i:i+100])
	}
	r.send(message(wire.CmdDisc, 0, 0, 0, 0))
	r.closed()
	eventually(t, "the end", func() bool { return s.Snapshot().Open == 0 && d.closes.Load() == 1 })
}

// TestHangupWithinTLS: who hangs up while the server does not read gets nothing more
// begun (H21).
func TestHangupWithinTLS(t *testing.T) {
	ca := newCA(t)
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(int64) <-chan struct{} { return gate }
	s, addr := serveTLS(t, ca, TLSRequire, tls.NoClientCert, Config{Exports: newMemExports().add(ExportInfo{Name: "a"}, d), MaxInFlight: 2})
	s.pollEvery = 10 * time.Millisecond
	r := dialTCP(t, addr).hello(bothFlags).startTLS(ca.config())
	r.goExport("a")
	for i := range 5 {
		r.send(message(wire.CmdWrite, wire.CmdFlagFUA, uint64(i), 0, 1, 1))
	}
	eventually(t, "two are begun", func() bool { return d.begun.Load() == 2 })
	r.nc.Close()
	eventually(t, "the hang-up is seen", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			return c.ctx.Err() != nil
		}
		return true
	})
	close(gate)
	eventually(t, "the end", func() bool { return s.Snapshot().Open == 0 })
	if got := d.begun.Load(); got != 2 {
		t.Errorf("%d changes were begun, want 2", got)
	}
}

func TestClientCertificates(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	e := newMemExports().
		add(ExportInfo{Name: "all"}, newMemDevice(1<<20)).
		add(ExportInfo{Name: "mail", Clients: []string{"mx1", "mx2"}}, newMemDevice(1<<20))
	e.def = "mail"
	s, addr := serveTLS(t, ca, TLSAllow, tls.VerifyClientCertIfGiven, Config{Exports: e})
	for _, tc := range []struct {
		name  string
		certs []tls.Certificate
		plain bool
		may   bool
	}{
		{"the right one", []tls.Certificate{ca.client("mx2")}, false, true},
		{"another name", []tls.Certificate{ca.client("mx20")}, false, false},
		{"no name", []tls.Certificate{ca.client("")}, false, false},
		{"none", nil, false, false},
		{"no TLS", nil, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			connect := func() *raw {
				r := dialTCP(t, addr).hello(bothFlags)
				if !tc.plain {
					r = r.startTLS(ca.config(tc.certs...))
				}
				return r
			}
			want, names := wire.RepErrPolicy, []string{"all"}
			if tc.may {
				want, names = wire.RepAck, []string{"all", "mail"}
			}
			r := connect()
			r.send(option(wire.OptList, nil))
			var got []string
			for _, a := range r.answers(wire.OptList) {
				if a.rep == wire.RepServer {
					name, _, _ := wire.ParseServer(a.data)
					got = append(got, name)
				}
			}
			if !slices.Equal(got, names) {
				t.Errorf("LIST: got %v, want %v", got, names)
			}
			r.send(option(wire.OptStructuredReply, nil))
			r.final(wire.OptStructuredReply)
			for _, name := range []string{"mail", ""} {
				for opt, data := range map[wire.Option][]byte{
					wire.OptInfo:            wire.AppendInfoRequest(nil, name),
					wire.OptListMetaContext: wire.AppendMetaContext(nil, name),
					wire.OptSetMetaContext:  wire.AppendMetaContext(nil, name, "base:allocation"),
				} {
					r.send(option(opt, data))
					if got := r.final(opt); got != want {
						t.Errorf("option %d for %q: got %s, want %s", opt, name, wire.ReplyName(got), wire.ReplyName(want))
					}
				}
				if got := connect().goExport(name); got != want {
					t.Errorf("GO %q: got %s, want %s", name, wire.ReplyName(got), wire.ReplyName(want))
				}
				x := connect()
				x.send(option(wire.OptExportName, []byte(name)))
				if tc.may {
					x.recv(10)
				} else {
					x.closed()
				}
			}
			if got := connect().goExport("all"); got != wire.RepAck {
				t.Errorf("GO all: got %s", wire.ReplyName(got))
			}
		})
	}
	// A certificate of somebody else is no certificate.
	r := dialTCP(t, addr).hello(bothFlags)
	r.send(option(wire.OptStartTLS, nil))
	r.final(wire.OptStartTLS)
	session := tls.Client(r.nc, &tls.Config{RootCAs: ca.pool, ServerName: "localhost", GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c := other.client("mx1")
		return &c, nil
	}})
	if err := session.Handshake(); err == nil {
		if _, err := session.Read(make([]byte, 1)); err == nil {
			t.Error("a certificate of another CA was taken")
		}
	}
	eventually(t, "the failure is counted", func() bool { return s.Snapshot().HandshakeFailed > 0 })
}

// TestCVE_2021_3716: nothing that was said in plain text counts within TLS, neither
// before STARTTLS nor in one piece with it.
func TestCVE_2021_3716(t *testing.T) {
	ca := newCA(t)
	_, addr := serveTLS(t, ca, TLSAllow, tls.NoClientCert, Config{Exports: threeExports()})
	r := dialTCP(t, addr).hello(bothFlags)
	for _, b := range [][]byte{
		option(wire.OptStructuredReply, nil), option(wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "base:allocation")),
		option(wire.OptClient, wire.AppendClient(nil, [16]byte{1}, 9)),
	} {
		r.send(b)
		if got := r.final(wire.ParseOption(b).ID); got != wire.RepAck {
			t.Fatal(wire.ReplyName(got))
		}
	}
	r = r.startTLS(ca.config())
	r.goExport("a")
	r.inSync() // with simple replies
	r.send(message(wire.CmdBlockStatus, 0, 1, 0, 4096))
	r.want(1, wire.EINVAL)

	r = dialTCP(t, addr).hello(bothFlags)
	r.send(append(option(wire.OptStartTLS, nil), option(wire.OptGo, wire.AppendInfoRequest(nil, "a"))...))
	if got := r.final(wire.OptStartTLS); got != wire.RepAck {
		t.Fatal(wire.ReplyName(got))
	}
	var b [512]byte // an alert and the end, or the end
	n, _ := r.nc.Read(b[:])
	if bytes.Contains(b[:n], []byte{0, 3, 0xe8, 0x89}) {
		t.Errorf("an answer in plain text: %x", b[:n])
	}
	for n > 0 {
		n, _ = r.nc.Read(b[:])
	}
}

// TestUnixWithoutTLS: with PlaintextOnUnix a Unix socket does not need what others do.
func TestUnixWithoutTLS(t *testing.T) {
	ca := newCA(t)
	cert := ca.server()
	e := newMemExports().add(ExportInfo{Name: "a", Clients: []string{"somebody"}}, newMemDevice(1<<20))
	for _, exempt := range []bool{false, true} {
		_, path := serve(t, Config{Exports: e, TLS: TLSRequire, PlaintextOnUnix: exempt,
			TLSConfig: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }})
		want := wire.RepErrTLSReqd
		if exempt {
			want = wire.RepAck
		}
		if got := dial(t, path).hello(bothFlags).goExport("a"); got != want {
			t.Errorf("exempt %v: got %s, want %s", exempt, wire.ReplyName(got), wire.ReplyName(want))
		}
		r := dial(t, path).hello(bothFlags).startTLS(ca.config())
		if got := r.goExport("a"); got != wire.RepAck {
			t.Errorf("exempt %v, within TLS: got %s", exempt, wire.ReplyName(got))
		}
		r.inSync()
	}
}
