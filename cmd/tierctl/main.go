package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"tierd/pkg/chart"
	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/tiering"
)

// The exit codes. They are listed in the help of the root command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitDamage = 3
)

// errDamage is wrapped by the error of a check that found damage.
var errDamage = errors.New("damage found")

// A usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exitCode is the only place that chooses an exit code.
func exitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errDamage):
		return exitDamage
	case errors.As(err, &usage), errors.Is(err, control.ErrUsage), errors.Is(err, config.ErrInvalid), errors.Is(err, chart.ErrFormat):
		return exitUsage
	default:
		return exitFailed
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	g := &globals{out: stdout, errOut: stderr, defaultConfig: config.DefaultPath}
	return g.run(ctx, args)
}

// globals are the flags that every verb shares, and where its output goes.
type globals struct {
	socket     string // --socket; "" until chosen
	output     string // --output: table or json
	configPath string // --config
	out        io.Writer
	errOut     io.Writer

	defaultConfig string // read if there is no --config and it exists
}

func (g *globals) run(ctx context.Context, args []string) int {
	root := newRootCommand(g)
	root.SetArgs(args)
	root.SetOut(g.out)
	root.SetErr(g.errOut)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(g.errOut, "tierctl: %v\n", err)
		hint := control.Hint(err)
		if errors.Is(err, tiering.ErrLocked) {
			hint = "this verb works on a pool that is down: stop tierd first; tierctl pool status asks the running one"
		}
		if errors.Is(err, tiering.ErrNoMetadata) {
			hint = "tierctl pool create makes a new pool; tierctl pool rebuild makes the metadata of a lost one anew from its backings"
		}
		if hint != "" {
			fmt.Fprintf(g.errOut, "hint: %s\n", hint)
		}
	}
	return exitCode(err)
}

const rootHelp = `Tierctl looks after a pool of tierd: what is in it, what moves, and why.

Most verbs ask the running daemon over its admin socket. The socket is the one
given by --socket, else the admin.socket of the configuration (--config, or
` + config.DefaultPath + ` if it exists), else ` + config.DefaultAdminSocket + `.

Exit codes:
  0  done
  1  failed
  2  the command line or the configuration makes no sense
  3  a check found damage`

// newRootCommand returns the tree of all verbs.
func newRootCommand(g *globals) *cobra.Command {
	root := group("tierctl", "Administer a pool of tierd", rootHelp,
		newPoolCommand(g, newPoolCreateCommand(g), newPoolCheckCommand(g), newPoolRepairCommand(g), newPoolDumpCommand(g),
			newPoolRebuildCommand(g), newPoolRestoreCommand(g)),
		newTierCommand(g),
		newBackingCommand(g),
		newVolumeCommand(g),
		newRelocationCommand(g),
		newAttachCommand(g),
		newDetachCommand(g),
		newLocateCommand(g),
		newHeatCommand(g),
		newBenchCommand(g),
		newSimulateCommand(g, newSimulatePaperCommand(g)),
		newTraceCommand(g),
		newVersionCommand(g),
		newManCommand(),
	)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.HiddenDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&g.socket, "socket", "", "admin socket of tierd (default: from the configuration)")
	flags.StringVar(&g.configPath, "config", "", "configuration file (default "+config.DefaultPath+", if it exists)")
	flags.StringVarP(&g.output, "output", "o", "table", "output: table or json")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s%v", named(c), err)
	})
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if g.output != "table" && g.output != "json" {
			return usagef("--output must be table or json (got %q)", g.output)
		}
		return nil
	}
	return root
}

// group returns a command that only holds others.
func group(name, short, long string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long, Args: cobra.ArbitraryArgs}
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			var names []string
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name())
				}
			}
			return usagef("%sneeds a verb: %s", named(c), strings.Join(names, ", "))
		}
		text := fmt.Sprintf("%sunknown verb %q", named(c), args[0])
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			text += fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
		}
		return usagef("%s", text)
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(commands...)
	return c
}

// named returns what an error about a command begins with: "pool status: ".
func named(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") + ": "
}

// args refuses a command line that has not one argument for each name.
func args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) == len(names) {
			return nil
		}
		if len(names) == 0 {
			return usagef("%stakes no arguments (got %q)", named(c), given)
		}
		return usagef("%stakes %s (got %d of them)", named(c), strings.Join(names, " "), len(given))
	}
}

// loadConfig reads the configuration that --config names, or else the default one.
func (g *globals) loadConfig() (*config.Config, error) {
	cfg, err := config.Load(cmp.Or(g.configPath, config.DefaultPath))
	if err != nil {
		return nil, usagef("%v", err)
	}
	return cfg, nil
}

// client returns a client for the daemon that the flags, the configuration or
// the default name.
func (g *globals) client() (*control.Client, error) {
	socket, err := g.socketPath()
	if err != nil {
		return nil, err
	}
	return control.Dial(socket), nil
}

func (g *globals) socketPath() (string, error) {
	if g.socket != "" {
		return g.socket, nil
	}
	if g.configPath != "" {
		cfg, err := g.loadConfig()
		if err != nil {
			return "", err
		}
		return cfg.Admin.Socket, nil
	}
	cfg, err := config.Load(g.defaultConfig)
	switch {
	case err == nil:
		return cfg.Admin.Socket, nil
	case errors.Is(err, config.ErrInvalid):
		// The daemon may be running well on what the file was before.
		fmt.Fprintf(g.errOut, "tierctl: %s is not valid, so asking at %s\n", g.defaultConfig, config.DefaultAdminSocket)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
	default:
		return "", err
	}
	return config.DefaultAdminSocket, nil
}

// ask calls one method of the daemon and prints the reply: as JSON, or with
// show.
func ask[Reply any](g *globals, call func(control.Service) (Reply, error), show func(io.Writer, Reply) error) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	defer client.Close()
	reply, err := call(client)
	if err != nil {
		return err
	}
	return g.print(reply, func(w io.Writer) error { return show(w, reply) })
}
