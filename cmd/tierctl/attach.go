package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"tierd/nbd/attach"
	"tierd/nbd/client"
	"tierd/nbd/kernel"
	"tierd/pkg/config"
	"tierd/pkg/samehost"
)

// attachDir is where attached devices are noted. It is none of the daemon's folders,
// which its service manager removes when it stops.
const attachDir = "/run/tierd-attach"

const attachText = `Attach makes a volume the block device /dev/nbdN of this machine, and keeps it so: when
the server restarts, or dies and comes back, requests wait, the device is connected
again, and they go on. It returns when the device is there, and leaves a process behind
that watches it; with --foreground it is that process itself, for a service manager.

The server is the one that the configuration of this machine describes, on its first
Unix socket or else its first address, or the one at --uri. A server on another machine
needs nothing but NBD; with nbds:// the connections go within TLS, through the watching
process.

Requests wait for the server for --dead-timeout; after that they fail, and a file system
turns read-only. A request that was under way when a connection died is sent again after
--timeout. One that takes longer than that has its connection replaced: let it be longer
than the server ever takes.

After a restart that may have lost answered data (see "continuity" in tierd(8)) the
device is not connected again by itself: requests wait until tierctl detach gives it up,
or --accept-loss goes on with what there is: with this loss, not with one after it.

tierctl attach --list shows the devices that are attached.`

type attachFlags struct {
	uri                  string
	connections          int
	blockSize            int
	timeout, deadTimeout time.Duration
	foreground, list     bool
	acceptLoss, dryRun   bool
	probe                bool
	dir                  string
	readyFD              int
}

func newAttachCommand(g *globals) *cobra.Command {
	var f attachFlags
	c := &cobra.Command{
		Use:     "attach VOLUME /dev/nbdN",
		Short:   "Make a volume a block device, and keep it so",
		Long:    attachText,
		Example: "  tierctl attach home /dev/nbd0\n  tierctl attach home /dev/nbd0 --connections 4\n  tierctl attach home /dev/nbd0 --uri 'nbds://storage.example/?tls-certificates=/etc/tierd/tls'\n  tierctl attach --list",
		RunE: func(c *cobra.Command, given []string) error {
			if f.probe { // the process that proveElsewhere starts
				if err := args("/dev/nbdN")(c, given); err != nil {
					return err
				}
				return attach.ReadDevice(given[0])
			}
			if f.list {
				if err := args()(c, given); err != nil {
					return err
				}
				return listAttached(g, f.dir)
			}
			if err := args("VOLUME", "/dev/nbdN")(c, given); err != nil {
				return err
			}
			return runAttach(c.Context(), g, f, given[0], given[1])
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.uri, "uri", "", "the server: nbd[s]+unix:///?socket=PATH or nbd[s]://HOST[:PORT] (default: from the configuration)")
	fl.IntVar(&f.connections, "connections", 1, "connections to the server, 1 to 16; more let more processors work")
	fl.IntVar(&f.blockSize, "block-size", 4096, "logical block of the device in bytes: 512, 1024, 2048 or 4096; keep it for the life of the volume")
	fl.DurationVar(&f.timeout, "timeout", 30*time.Second, "after this a request's connection counts as dead, and the request is sent again")
	fl.DurationVar(&f.deadTimeout, "dead-timeout", time.Hour, "for how long requests wait for a server that is away")
	fl.BoolVar(&f.foreground, "foreground", false, "watch the device in this process")
	fl.BoolVar(&f.acceptLoss, "accept-loss", false, "go on although answered data may be lost")
	fl.BoolVar(&f.list, "list", false, "list the devices that are attached")
	fl.StringVar(&f.dir, "state-dir", attachDir, "folder in which attached devices are noted")
	fl.IntVar(&f.readyFD, "ready-fd", 0, "")
	fl.BoolVar(&f.probe, "probe", false, "")
	_ = errors.Join(fl.MarkHidden("ready-fd"), fl.MarkHidden("probe"))
	dryRunFlag(c, &f.dryRun)
	return c
}

func runAttach(ctx context.Context, g *globals, f attachFlags, volume, device string) error {
	index, err := attach.IndexOf(device)
	if err != nil {
		return usagef("the device %v", err)
	}
	device = fmt.Sprintf("/dev/nbd%d", index)
	if err := config.CheckVolumeName(volume); err != nil {
		return usagef("the volume's name %v", err)
	}
	switch {
	case f.connections < 1 || f.connections > 16:
		return usagef("--connections must be from 1 to 16 (got %d)", f.connections)
	case f.blockSize < 512 || f.blockSize > 4096 || f.blockSize&(f.blockSize-1) != 0:
		return usagef("--block-size must be 512, 1024, 2048 or 4096 (got %d)", f.blockSize)
	case f.timeout < time.Second:
		return usagef("--timeout must be at least 1s (got %s)", f.timeout)
	case f.deadTimeout < f.timeout:
		return usagef("--dead-timeout must be at least --timeout, %s (got %s)", f.timeout, f.deadTimeout)
	}
	uri, err := g.volumeURI(f.uri, volume)
	if err != nil {
		return err
	}
	if f.dryRun {
		return g.print(map[string]string{"device": device, "uri": uri}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s%s would be attached to %s\n", dryRunPrefix, device, uri)
			return err
		})
	}
	if f.acceptLoss {
		if err := attach.AcceptLoss(f.dir, device); err != nil {
			return err
		}
		if attach.Watched(f.dir, device) {
			_, err := fmt.Fprintf(g.out, "%s goes on with what there is\n", device)
			return err
		}
	}
	if !f.foreground {
		if attach.Watched(f.dir, device) {
			return fmt.Errorf("%s is attached, and watched, already; tierctl attach --list shows to what", device)
		}
		return attachInBackground(ctx, g, f, volume, device, uri)
	}
	return attachHere(ctx, g, f, device, uri)
}

// volumeURI returns the address of a volume at the server that was named, or else at
// the one that the configuration describes.
func (g *globals) volumeURI(server, volume string) (string, error) {
	if server == "" {
		at := config.Listener{Network: "unix", Address: config.DefaultNBDSocket}
		cfg, err := config.Load(g.configPathOrDefault())
		switch {
		case err == nil:
			at = cfg.NBD.Listen[0]
			for _, l := range cfg.NBD.Listen {
				if l.Network == "unix" {
					at = l
					break
				}
			}
		case g.configPath != "" || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return "", usagef("%v", err)
		}
		server = "nbd://" + at.Address
		if at.Network == "unix" {
			server = "nbd+unix:///?socket=" + url.QueryEscape(at.Address)
		}
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", usagef("--uri: %v", err)
	}
	if path := strings.Trim(u.Path, "/"); path != "" && path != volume {
		return "", usagef("--uri names the volume %q, and the command line %q", path, volume)
	}
	u.Path = "/" + volume
	if _, err := client.ParseURI(u.String()); err != nil {
		return "", usagef("--uri: %v", err)
	}
	return u.String(), nil
}

func (g *globals) configPathOrDefault() string {
	if g.configPath != "" {
		return g.configPath
	}
	return g.defaultConfig
}

// quietTime is how long attaching may take before that is told.
const quietTime = 10 * time.Second

// attachInBackground starts a process that attaches and watches the device, and waits
// for it to say that the device is there.
func attachInBackground(ctx context.Context, g *globals, f attachFlags, volume, device, uri string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	logName := filepath.Join(f.dir, filepath.Base(device)+".log")
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer told.Close()
	cmd := exec.Command(exe, "attach", volume, device, "--foreground", "--uri", uri, "--state-dir", f.dir, "--ready-fd", "3",
		"--connections", fmt.Sprint(f.connections), "--block-size", fmt.Sprint(f.blockSize),
		"--timeout", f.timeout.String(), "--dead-timeout", f.deadTimeout.String())
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.ExtraFiles = []*os.File{tell}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, tell.Close())
	}
	if err := tell.Close(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	// A device that is taken over waits for its server as long as it takes.
	patience := time.AfterFunc(quietTime, func() {
		fmt.Fprintf(g.errOut, "tierctl: %s is not there yet; tierctl attach --list and %s tell why\n", device, logName)
	})
	defer patience.Stop()
	answer, err := io.ReadAll(told)
	if err != nil {
		return err
	}
	if text, ok := strings.CutPrefix(string(answer), "failed: "); ok || len(answer) == 0 {
		if len(answer) == 0 {
			text = "the process that was to watch it has died; see " + logName
		}
		return errors.New(strings.TrimSpace(text))
	}
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	state, err := attach.Load(f.dir, device)
	if err != nil {
		return err
	}
	return g.print(public(state), func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is %s of %s, watched by process %d; its log is %s\n", device, uri, size(state.Size), state.PID, logName)
		return err
	})
}

// public returns a state without its secret.
func public(s attach.State) attach.State {
	s.ClientID = ""
	return s
}

// attachHere attaches and watches the device.
func attachHere(ctx context.Context, g *globals, f attachFlags, device, uri string) (err error) {
	tell := func(string) {}
	if f.readyFD > 0 {
		syscall.CloseOnExec(f.readyFD) // whoever started us waits for its end, and proveElsewhere may never
		pipe := os.NewFile(uintptr(f.readyFD), "ready")
		tell = func(text string) {
			_, _ = pipe.WriteString(text)
			_ = pipe.Close()
		}
	}
	attached := false
	defer func() {
		if err != nil && !attached {
			tell("failed: " + err.Error())
		}
	}()
	log := slog.New(slog.NewTextHandler(g.errOut, nil))
	for _, r := range samehost.Protect() {
		if r.Err != nil {
			log.Warn("not protected against a lack of memory on this host", "protection", r.Name, "error", r.Err)
		}
	}
	k, err := kernel.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	events, err := k.Events()
	if err != nil {
		return err
	}
	defer events.Close()
	deaths := make(chan uint32, 256)
	go func() {
		for {
			index, err := events.Next()
			if err != nil {
				return
			}
			select {
			case deaths <- index:
			default: // it is looked at anyway
			}
		}
	}()
	return attach.Run(ctx, k, attach.Options{
		Device: device, URI: uri, Connections: f.connections, BlockSize: f.blockSize, Timeout: f.timeout, DeadTimeout: f.deadTimeout,
		StateDir: f.dir, Deaths: deaths, Logger: log, Prove: proveElsewhere,
	}, func() {
		attached = true
		tell("attached\n")
		_, _ = sd.SdNotify(false, sd.SdNotifyReady)
	})
}

// proveElsewhere reads from a device in a process of its own, which nothing but the
// server can end.
func proveElsewhere(device string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%w: %w", attach.ErrNoProof, err)
	}
	out, err := exec.Command(exe, "attach", "--probe", device).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Exited():
		return errors.New(strings.TrimSpace(string(out)))
	}
	return fmt.Errorf("%w: %w", attach.ErrNoProof, err)
}

func listAttached(g *globals, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // "none is attached" is not known
	}
	list := []attach.State{}
	for _, file := range files {
		name, ok := strings.CutSuffix(file.Name(), ".json")
		if !ok {
			continue
		}
		device := "/dev/" + name
		s, err := attach.Load(dir, device)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s = attach.State{Device: device, Phase: attach.PhaseAttached, Problem: err.Error()}
		}
		if s.Phase != attach.PhaseRefused && !attach.Watched(dir, s.Device) {
			s.Phase = attach.PhaseUnwatched
		}
		list = append(list, public(s))
	}
	return g.print(list, func(w io.Writer) error {
		t := newTable(w, "DEVICE", "STATE", "SINCE", "SIZE", "CONNECTIONS", "RECONNECTS", "URI", "PROBLEM")
		for _, s := range list {
			t.row(s.Device, s.Phase, s.Since.Format(time.DateTime), size(s.Size), s.Connections, s.Reconnects, s.URI, s.Problem)
		}
		return t.flush()
	})
}

func newDetachCommand(g *globals) *cobra.Command {
	var force, dryRun bool
	var dir string
	c := &cobra.Command{
		Use:     "detach /dev/nbdN",
		Short:   "Take the block device of a volume down",
		Long:    "Detach disconnects a device, and ends the process that watches it. A device that is\nmounted, or used in another way, is refused without --force; with it, all requests of its\nusers fail, and it is free when they have let go.",
		Example: "  tierctl detach /dev/nbd0\n  tierctl detach /dev/nbd0 --dry-run",
		Args:    args("/dev/nbdN"),
		RunE: func(c *cobra.Command, args []string) error {
			return runDetach(c.Context(), g, args[0], dir, force, dryRun)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "although it is in use: its users get errors")
	c.Flags().StringVar(&dir, "state-dir", attachDir, "folder in which attached devices are noted")
	dryRunFlag(c, &dryRun)
	return c
}

// detachTime is how long a device may take to go down.
const detachTime = time.Minute

func runDetach(ctx context.Context, g *globals, device, dir string, force, dryRun bool) error {
	index, err := attach.IndexOf(device)
	if err != nil {
		return usagef("the device %v", err)
	}
	device = fmt.Sprintf("/dev/nbd%d", index)
	k, err := kernel.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	on, err := k.Connected(index)
	if err != nil {
		return err
	}
	if !on {
		return fmt.Errorf("%s is not attached", device)
	}
	users, err := attach.Users("/proc", "/sys/block", device)
	if err != nil {
		return err
	}
	if len(users) > 0 && !force {
		return fmt.Errorf("%s; end that first, or use --force", strings.Join(users, ", "))
	}
	line := device + " detached"
	if dryRun {
		line = dryRunPrefix + line
	} else {
		err := attach.TakeDown(dir, device, func() error {
			if err := k.Disconnect(index); err != nil {
				return err
			}
			return awaitDown(ctx, k, index, dir, device, len(users) > 0)
		})
		if err != nil {
			return err
		}
	}
	return g.print(map[string]any{"device": device, "detached": !dryRun}, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, line)
		return err
	})
}

// awaitDown returns when the device is down and nobody watches it any more. One with users
// is down when they let go of it, which is not waited for.
func awaitDown(ctx context.Context, k *kernel.Client, index uint32, dir, device string, used bool) error {
	for deadline := time.Now().Add(detachTime); time.Now().Before(deadline); {
		if on, err := k.Connected(index); err != nil {
			return err
		} else if (!on || used) && !attach.Watched(dir, device) {
			return attach.Forget(dir, device)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s is disconnected, but does not go down: somebody has it open, or the process that watches it hangs", device)
}
