package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/pojntfx/go-nbd/pkg/backend"
	gonbd "github.com/pojntfx/go-nbd/pkg/server"
)

// startGoNBD serves a file by the library's own server, in this process, which
// does nothing else while a load runs.
func startGoNBD(_ context.Context, s *site) (*server, error) {
	name, sock := filepath.Join(s.dir, "gonbd.img"), filepath.Join(s.dir, "gonbd.sock")
	if err := allocate(name, s.size); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open file: %w", err)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	var wg sync.WaitGroup
	exports := []*gonbd.Export{{Name: export, Backend: backend.NewFileBackend(f)}}
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() {
				defer nc.Close()
				// It returns an error for a client that leaves, too; a client that
				// is thrown out tells in its own report.
				_ = gonbd.Handle(nc, exports, &gonbd.Options{SupportsMultiConn: true})
			})
		}
	})
	return &server{name: "go-nbd", files: []string{name}, sock: sock, pid: os.Getpid(), stop: func() error {
		l.Close()
		wg.Wait()
		return f.Close()
	}}, nil
}
