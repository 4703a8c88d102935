package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"tierd/nbd"
	"tierd/pkg/config"
)

// certificates are what the NBD server shows and asks for within TLS. They can be
// read anew while it runs.
type certificates struct {
	current atomic.Pointer[tls.Config]
}

// certificateNotice is how long before its end a certificate is warned of.
const certificateNotice = 14 * 24 * time.Hour

// load reads the files, and warns of a certificate that is about to run out. If a file
// cannot be used, what was read before stays.
func (c *certificates) load(t config.TLS, log *slog.Logger) error {
	if t.Mode == config.TLSOff {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return fmt.Errorf("nbd.tls: certificate %s with key %s: %w", t.Cert, t.Key, err)
	}
	// Without tickets every session shows a certificate that is good now.
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if t.ClientCA != "" {
		pem, err := os.ReadFile(t.ClientCA)
		if err != nil {
			return fmt.Errorf("nbd.tls.client_ca: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("nbd.tls.client_ca: there is no certificate in %s", t.ClientCA)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.current.Store(cfg)
	now := time.Now()
	switch end := cert.Leaf.NotAfter; {
	case end.Before(now):
		log.Warn("the certificate of the server has run out: clients refuse it", "file", t.Cert, "end", end)
	case end.Before(now.Add(certificateNotice)):
		log.Warn("the certificate of the server is about to run out", "file", t.Cert, "end", end)
	}
	return nil
}

// tlsMode is the mode of the configuration as the server knows it.
func tlsMode(m config.TLSMode) nbd.TLSMode {
	switch m {
	case config.TLSAllow:
		return nbd.TLSAllow
	case config.TLSRequire:
		return nbd.TLSRequire
	}
	return nbd.TLSOff
}
