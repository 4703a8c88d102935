package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"

	"tierd/nbd"
	"tierd/pkg/config"
)

// certificates are what the NBD server shows and asks for within TLS. They can be
// read anew while it runs.
type certificates struct {
	current atomic.Pointer[tls.Config]
}

// load reads the files. If one cannot be used, what was read before stays.
func (c *certificates) load(t config.TLS) error {
	if t.Mode == config.TLSOff {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return fmt.Errorf("nbd.tls: certificate %s with key %s: %w", t.Cert, t.Key, err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
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
