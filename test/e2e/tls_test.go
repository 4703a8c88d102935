package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A ca makes certificates in files, named as libnbd and qemu look for them.
type ca struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	der  []byte
}

func newCA(t *testing.T) *ca {
	t.Helper()
	c := &ca{t: t}
	c.key, c.der = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "a CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	var err error
	if c.cert, err = x509.ParseCertificate(c.der); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *ca) sign(cert *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, by := c.cert, c.key
	if parent == nil {
		parent, by = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), by)
	if err != nil {
		c.t.Fatal(err)
	}
	return key, der
}

// write puts a certificate, its key and that of the CA into a folder.
func (c *ca) write(dir, who, name string) {
	c.t.Helper()
	usage := x509.ExtKeyUsageClientAuth
	if who == "server" {
		usage = x509.ExtKeyUsageServerAuth
	}
	key, der := c.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"ca-cert.pem":     {Type: "CERTIFICATE", Bytes: c.der},
		who + "-cert.pem": {Type: "CERTIFICATE", Bytes: der},
		who + "-key.pem":  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// tlsSite is a running daemon that requires TLS and certificates of a CA.
func tlsSite(t *testing.T) (*ca, *site, *daemon) {
	t.Helper()
	c := newCA(t)
	s := newSite(t)
	s.write(layout{tiers: twoTiers(), volumes: "{name: all, size: 32MiB}, {name: mail, size: 32MiB, allow_clients: [mx1]}"})
	dir := s.path("tls")
	c.write(dir, "server", "server")
	s.edit("nbd:\n", fmt.Sprintf("nbd:\n  tls: {mode: require, cert: %[1]s/server-cert.pem, key: %[1]s/server-key.pem, client_ca: %[1]s/ca-cert.pem, unix_plaintext: true}\n", dir))
	s.ctl("pool", "create")
	return c, s, s.start()
}

// TestTLS has tools of libnbd and qemu use volumes within TLS, and some be refused.
func TestTLS(t *testing.T) {
	t.Parallel()
	need(t, "nbdinfo", "nbdcopy", "qemu-img")
	c, s, d := tlsSite(t)
	mx1, other := s.path("mx1"), s.path("other")
	c.write(mx1, "client", "mx1")
	c.write(other, "client", "mx10")
	newCA(t).write(s.path("stranger"), "client", "mx1")
	uri := func(volume, certs string) string {
		return fmt.Sprintf("nbds://%s/%s?tls-certificates=%s", d.tcp, volume, certs)
	}

	var list struct{ Exports []map[string]any }
	if err := json.Unmarshal([]byte(tool(t, "nbdinfo", "--list", "--json", uri("", mx1))), &list); err != nil || len(list.Exports) != 2 {
		t.Errorf("the list for mx1: %v, %v", list, err)
	}
	list.Exports = nil
	if err := json.Unmarshal([]byte(tool(t, "nbdinfo", "--list", "--json", uri("", other))), &list); err != nil || len(list.Exports) != 1 {
		t.Errorf("the list for another: %v, %v", list, err)
	}
	for what, args := range map[string][]string{
		"another name":   {"nbdinfo", uri("mail", other)},
		"another CA":     {"nbdinfo", uri("all", s.path("stranger"))},
		"no TLS":         {"nbdinfo", "nbd://" + d.tcp + "/all"},
		"no certificate": {"nbdinfo", uri("all", s.path("none"))},
	} {
		if r := execute(t, os.TempDir(), args[0], args[1:]...); r.code == 0 {
			t.Errorf("%s: nbdinfo succeeds:\n%s", what, r.stdout)
		}
	}

	in, out := s.path("in"), s.path("out")
	randomFile(t, in, 32*mib)
	tool(t, "nbdcopy", "--connections=2", in, uri("mail", mx1))
	tool(t, "nbdcopy", uri("mail", mx1), out)
	tool(t, "cmp", in, out)
	host, port, _ := net.SplitHostPort(d.tcp)
	tool(t, "qemu-img", "compare", "--object", "tls-creds-x509,id=tls0,endpoint=client,dir="+mx1, "--image-opts",
		"driver=file,filename="+in, fmt.Sprintf("driver=nbd,host=%s,port=%s,export=mail,tls-creds=tls0", host, port))
	load := s.ctl("bench", "--uri", uri("all", mx1), "--time", "1s", "--verify")
	if !strings.Contains(load, "IOPS") && !strings.Contains(load, "iops") {
		t.Errorf("tierctl bench within TLS:\n%s", load)
	}
	// The kernel of this host needs none.
	tool(t, "nbdcopy", s.uri("mail"), out)
	tool(t, "cmp", in, out)

	// tierctl changes who may, for connections to come.
	s.ctl("volume", "set", "mail", "--allow-client", "mx10", "--allow-client", "mx2")
	if r := execute(t, os.TempDir(), "nbdinfo", uri("mail", mx1)); r.code == 0 {
		t.Error("mx1 may still use the volume")
	}
	tool(t, "nbdinfo", uri("mail", other))
	if wide := s.ctl("volume", "list", "--wide"); !strings.Contains(wide, "mx10, mx2") {
		t.Errorf("volume list --wide does not show the clients:\n%s", wide)
	}
	d.stop()
	d = s.start() // it lasts
	tool(t, "nbdinfo", uri("mail", other))
	s.ctl("volume", "set", "mail", "--allow-all")
	tool(t, "nbdinfo", uri("mail", mx1))
}

// TestCertificatesAreReadAgain: SIGHUP takes renewed certificates; bad ones change
// nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	need(t, "nbdinfo")
	old, s, d := tlsSite(t)
	before, after := s.path("before"), s.path("after")
	old.write(before, "client", "x")
	renewed := newCA(t)
	renewed.write(after, "client", "x")
	works := func(certs string) bool {
		return execute(t, os.TempDir(), "nbdinfo", fmt.Sprintf("nbds://%s/all?tls-certificates=%s", d.tcp, certs)).code == 0
	}
	if !works(before) || works(after) {
		t.Fatal("the first certificates are not in force")
	}
	if err := os.WriteFile(s.path("tls/server-cert.pem"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGHUP)
	eventually(t, "the fault is told", 0, func() bool { return d.logged("certificates not reloaded") })
	if !works(before) {
		t.Error("a bad certificate file took those in use away")
	}
	renewed.write(s.path("tls"), "server", "server")
	d.signal(syscall.SIGHUP)
	eventually(t, "the new ones are in force", 0, func() bool { return d.logged("certificates reloaded") })
	if works(before) || !works(after) {
		t.Error("the renewed certificates are not in force")
	}
	if !d.logged("about to run out") { // they are good for a day
		t.Error("nothing warns of a certificate that runs out")
	}
}
