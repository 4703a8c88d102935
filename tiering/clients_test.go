package tiering_test

import (
	"slices"
	"strings"
	"testing"

	"tierd/test/model"
	"tierd/tiering"
)

// TestClientsOutliveTheMetadata: who may use a volume is known after a restart, and
// after a rebuild from the backings: a lost file must not open a volume to everybody.
func TestClientsOutliveTheMetadata(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	want := []string{"mx1", "größe 2"}
	if err := e.Pool.SetClients(ctx, "v0", want, false); err != nil {
		t.Fatal(err)
	}
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "made", Size: ext, Clients: want[:1]}, false); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		for name, want := range map[string][]string{"v0": want, "made": want[:1], "v1": nil} {
			if got := e.volume(name).Clients(); !slices.Equal(got, want) {
				t.Errorf("%s: clients of %s: got %q, want %q", when, name, got, want)
			}
		}
	}
	check("at first")
	e.Close()
	e.Open()
	check("after a restart")
	e.Close()
	e.loseMetadata()
	e.Open()
	check("after a rebuild")

	for what, names := range map[string][]string{
		"empty": {""}, "twice": {"a", "a"}, "control character": {"a\nb"}, "too long": {strings.Repeat("n", 256)}, "not text": {"\xff"},
		"too many": strings.Split(strings.Repeat("n,", 64)+"n", ","),
	} {
		if err := e.Pool.SetClients(ctx, "v1", names, false); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	check("after refusals")
}
