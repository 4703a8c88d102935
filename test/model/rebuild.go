package model

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// rebuildInto makes metadata of the closed pool at path from its backings alone.
func (w *World) rebuildInto(path string) {
	w.t.Helper()
	o := tiering.RebuildOptions{Metadata: path, OpenStore: w.openStore}
	for p := range w.paths {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: p})
	}
	if _, err := tiering.Rebuild(context.Background(), o); err != nil {
		w.t.Fatalf("rebuild: %v", err)
	}
}

// LoseMetadata removes the metadata of the closed pool and rebuilds them.
func (w *World) LoseMetadata() {
	w.t.Helper()
	if err := os.Remove(w.metadata()); err != nil {
		w.t.Fatal(err)
	}
	w.rebuildInto(w.metadata())
}

// CheckRebuild compares the metadata of the pool, which was stopped cleanly, with
// what a rebuild makes of the backings.
func (w *World) CheckRebuild() error {
	w.t.Helper()
	path := filepath.Join(w.dir, "rebuilt.db")
	w.rebuildInto(path)
	defer os.Remove(path)
	wantState, want := w.readMap(w.metadata())
	state, got := w.readMap(path)
	if !maps.Equal(got, want) {
		return fmt.Errorf("rebuilt map = %v\nwant %v", got, want)
	}
	if !reflect.DeepEqual(state.Volumes, wantState.Volumes) {
		return fmt.Errorf("rebuilt volumes = %+v\nwant %+v", state.Volumes, wantState.Volumes)
	}
	return nil
}

func (w *World) readMap(path string) (extentmap.State, map[extent.Key]extent.Location) {
	w.t.Helper()
	db, err := extentmap.Open(path, extentmap.Options{ReadOnly: true})
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	s, m := db.State(), make(map[extent.Key]extent.Location)
	for _, v := range s.Volumes {
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if !l.IsZero() {
					m[extent.Key{Volume: v.ID, Index: first + extent.Index(i)}] = l
				}
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return s, m
}

// AwaitHealed waits until the slot tables of the open pool match its map. Until
// then a rebuild may find of an extent that was overwritten since the last crash
// what it held before.
func (w *World) AwaitHealed() {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); w.Pool.Info().Healed < 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("the slot tables are not healed after two minutes")
		}
	}
}
