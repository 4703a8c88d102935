package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// export is the name under which each server exports its file.
const export = "bench"

// A server is an NBD server that is up.
type server struct {
	name  string
	files []string // that hold the data
	sock  string
	pid   int
	stop  func() error
}

func (s *server) uri() string { return "nbd+unix:///" + export + "?socket=" + s.sock }

// A site is where servers run.
type site struct {
	dir  string // a folder of ours
	bin  string // the folder of tierd and tierctl
	size int64  // bytes of each export
}

// starters are the servers by name. "tierd" is the one that others are compared with.
var starters = map[string]func(context.Context, *site) (*server, error){
	"tierd":    func(ctx context.Context, s *site) (*server, error) { return s.startTierd(ctx, "tierd", 1) },
	"tierd3":   func(ctx context.Context, s *site) (*server, error) { return s.startTierd(ctx, "tierd3", 3) },
	"nbdkit":   startNbdkit,
	"qemu-nbd": startQemu,
	"go-nbd":   startGoNBD,
}

func startNbdkit(ctx context.Context, s *site) (*server, error) {
	file, sock := filepath.Join(s.dir, "nbdkit.img"), filepath.Join(s.dir, "nbdkit.sock")
	if err := allocate(file, s.size); err != nil {
		return nil, err
	}
	return launch(ctx, &server{name: "nbdkit", files: []string{file}, sock: sock},
		"nbdkit", "--foreground", "--exit-with-parent", "--unix", sock, "file", file)
}

func startQemu(ctx context.Context, s *site) (*server, error) {
	file, sock := filepath.Join(s.dir, "qemu.img"), filepath.Join(s.dir, "qemu.sock")
	if err := allocate(file, s.size); err != nil {
		return nil, err
	}
	return launch(ctx, &server{name: "qemu-nbd", files: []string{file}, sock: sock},
		"qemu-nbd", "--format=raw", "--cache=writeback", "--persistent", "--shared=16", "--export-name="+export, "--socket="+sock, file)
}

// allocate makes a file whose space is reserved.
func allocate(file string, size int64) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", size, file, err)
	}
	return nil
}

// startTierd creates a pool with one volume and serves it. The volume fills the
// files of all tiers about alike. Movement is as good as off: a cycle is a day.
func (s *site) startTierd(ctx context.Context, name string, tiers int) (*server, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	srv := &server{name: name, sock: filepath.Join(dir, "nbd.sock")}
	each := s.size / int64(tiers) &^ (1<<20 - 1)
	each += each / 64 // superblocks and slot tables
	var b strings.Builder
	fmt.Fprintf(&b, "metadata: %s/pool.db\ntiers:\n", dir)
	for i := range tiers {
		file := filepath.Join(dir, fmt.Sprintf("tier%d.img", i))
		srv.files = append(srv.files, file)
		fmt.Fprintf(&b, "  - {name: t%d, media: ssd, backings: [{path: %s, size: %d, preallocate: true}]}\n", i, file, each+64<<20)
	}
	fmt.Fprintf(&b, "volumes: [{name: %s, size: %d}]\n", export, s.size)
	fmt.Fprintf(&b, "nbd: {listen: [\"unix:%s\"]}\nrelocation: {cycle: 24h}\n", srv.sock)
	fmt.Fprintf(&b, "metrics: {listen: \"127.0.0.1:0\"}\nadmin: {socket: %s/admin.sock}\n", dir)
	config := filepath.Join(dir, "tierd.yaml")
	if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	if _, err := runTool(ctx, filepath.Join(s.bin, "tierctl"), "pool", "create", "--config", config); err != nil {
		return nil, fmt.Errorf("create pool: %w", err)
	}
	return launch(ctx, srv, filepath.Join(s.bin, "tierd"), "--config", config)
}

// launch starts the program of a server and returns when its socket answers.
func launch(ctx context.Context, s *server, name string, args ...string) (*server, error) {
	log, err := os.Create(s.sock + ".log")
	if err != nil {
		return nil, fmt.Errorf("create log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C is for us, and we stop it in our own time.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.pid = cmd.Process.Pid
	s.stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
				return nil // it has no handler, and needs none
			}
			return err
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			return fmt.Errorf("stop %s: it did not end: %w", s.name, <-ended)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		if nc, err := net.Dial("unix", s.sock); err == nil {
			return s, nc.Close()
		}
		select {
		case err := <-ended:
			text, _ := os.ReadFile(s.sock + ".log")
			return nil, fmt.Errorf("%s ended: %w: %s", s.name, errors.Join(err, errEarly), strings.TrimSpace(string(text)))
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), s.stop())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s does not answer", s.name), s.stop())
		}
	}
}

// errEarly explains why the end of a server is an error even with exit code 0.
var errEarly = errors.New("before it answered")

// settle syncs the files of a server.
func (s *server) settle() error {
	for _, name := range s.files {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	return nil
}

// cpu returns the processor time that the server's process has spent.
func (s *server) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return parseStat(string(stat))
}

// parseStat reads user and system time, fields 14 and 15, of /proc/PID/stat. The
// second field, the program's name, may hold anything; the fields after it do not.
func parseStat(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("read processor time: %d fields", len(fields))
	}
	const tick = time.Second / 100 // USER_HZ, the same on every machine
	var sum int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}
