package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tierd/tiering"
)

// dumpOptions are the flags of pool dump.
type dumpOptions struct {
	file string
	heat bool
}

func newPoolDumpCommand(g *globals) *cobra.Command {
	var opts dumpOptions
	c := &cobra.Command{
		Use:   "dump",
		Short: "Write the metadata of a pool as text",
		Long: `Dump writes the metadata of a pool that no daemon serves: the pool record with
commit number, clean-stop mark and incarnation, tiers, backings, volumes with
their settings, and the map in runs of [first extent, count, backing, first slot].
It is JSON, one object a line, and has a checksum at its end.

pool restore takes a dump as it is if it is of the last commit before a clean
stop, and the backings have not been written since. Of an older one it takes names
and settings; the map is rebuilt from the backings then. That is also why a
running daemon is not dumped.

--file replaces an earlier dump and nothing else: it refuses files of the pool, other
files, devices and links.`,
		Example: `  tierctl pool dump > pool.dump
  tierctl pool dump --heat --file /var/backups/pool.dump
  tierctl pool dump | jq -c 'select(.type == "volume") | .volume'`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error { return runPoolDump(c.Context(), g, opts) },
	}
	c.Flags().StringVar(&opts.file, "file", "", "`path` to write to, which appears when it is whole; default: standard output")
	c.Flags().BoolVar(&opts.heat, "heat", false, "with the heat of the extents")
	return c
}

func runPoolDump(ctx context.Context, g *globals, opts dumpOptions) error {
	o, err := g.offlineOptions()
	if err != nil {
		return err
	}
	write := func(w io.Writer) error {
		d, err := tiering.Dump(ctx, o, tiering.DumpOptions{Heat: opts.heat, Path: opts.file}, w)
		if err != nil {
			return fmt.Errorf("dump pool: %w", err)
		}
		fmt.Fprintf(g.errOut, "dumped %s with %s, as of commit %d\n", count(d.Volumes, "volume"), count(d.Extents, "extent"), d.Commit)
		if !d.Clean {
			fmt.Fprintln(g.errOut, "the pool was not stopped cleanly: of this dump pool restore takes names and settings alone")
		}
		return nil
	}
	if opts.file == "" {
		return write(g.out)
	}
	if err := mayReplace(opts.file); err != nil {
		return fmt.Errorf("dump pool: %w", err)
	}
	return writeWhole(opts.file, write)
}

// mayReplace refuses to put a dump in the place of anything but a dump, or an empty
// file: the rename would not ask.
func mayReplace(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file; name another path", path)
	case info.Size() == 0:
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	switch is, err := tiering.IsDump(f); {
	case err != nil:
		return err
	case !is:
		return fmt.Errorf("%s is there, and is no dump; move it away, or name another path", path)
	}
	return nil
}

// writeWhole makes the file at path appear, or change, only when all of it is
// written and durable.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	err = write(f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
