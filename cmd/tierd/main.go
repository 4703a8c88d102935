package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"tierd/pkg/config"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the pool, a listener or the shutdown
	exitConfig = 2 // the command line or the configuration
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("tierd", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "Usage: tierd --config FILE\n\nServes the volumes of a pool over NBD. Example:\n\n  tierd --config /etc/tierd/tierd.yaml\n\n")
		fs.PrintDefaults()
		fmt.Fprint(stderr, "\nExit codes: 0 stopped cleanly, 1 failed, 2 bad command line or configuration.\n")
	}
	path := fs.String("config", config.DefaultPath, "configuration `file`")
	format := fs.String("log-format", "text", "text or json")
	readOnly := fs.Bool("read-only", false, "serve for salvage, and write nothing at all")
	degraded := fs.Bool("degraded", false, "start although backings are missing; what is there answers with errors")
	checkOnly := fs.Bool("check-config", false, "check the configuration and exit")
	showVersion := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitConfig
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "tierd: unexpected argument %q\n", fs.Arg(0))
		return exitConfig
	}
	if *showVersion {
		fmt.Fprintln(stdout, "tierd", programVersion())
		return exitOK
	}
	level := new(slog.LevelVar)
	log, err := newLogger(stderr, *format, level)
	if err != nil {
		fmt.Fprintf(stderr, "tierd: %v\n", err)
		return exitConfig
	}
	cfg, err := config.Load(*path)
	if err != nil {
		fmt.Fprintf(stderr, "tierd: %v\n", err)
		return exitConfig
	}
	if *checkOnly {
		fmt.Fprintf(stdout, "%s is valid\n", *path)
		return exitOK
	}
	level.Set(cfg.Log.Level.Level())
	// Two goroutines blocked in system calls must not leave the others without a
	// processor until the runtime notices, which can take 10 ms.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()+2))

	// The first signal stops the daemon, the second cuts the draining short.
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stop)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)

	d := &daemon{path: *path, readOnly: *readOnly, degraded: *degraded, cfg: cfg, log: log, level: level, stop: stop, reload: reload}
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(stderr, "tierd: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// newLogger returns a logger that prints in the given format what reaches level.
func newLogger(w io.Writer, format string, level slog.Leveler) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format must be text or json (got %q)", format)
}

// version is set by the linker: -X main.version=v1.2.3.
var version string

// programVersion returns the version the program was built from.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value[:min(12, len(s.Value))]
		}
	}
	if v == "" {
		v = "(devel)"
	}
	return v
}
