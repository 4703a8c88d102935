package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a Service that remembers the last request and answers what it is told.
type fake struct {
	request any
	err     error
	wait    func(context.Context) error // called by RelocationRun
}

func (f *fake) change(request any, name string) (VolumeChange, error) {
	f.request = request
	return VolumeChange{Volume: Volume{Name: name, PerTier: []TierBytes{{"ssd", 5}}}, Changes: []string{"changed"}}, f.err
}

func (f *fake) relocation(request any) (RelocationStatus, error) {
	f.request = request
	return RelocationStatus{State: RelocationPaused, Cycle: 7, NextCycleAt: time.Unix(1e9, 0).UTC()}, f.err
}

func (f *fake) PoolStatus(context.Context) (PoolStatus, error) {
	return PoolStatus{PoolID: "p", MetadataState: MetadataOK, Warnings: []string{"w"}}, f.err
}
func (f *fake) Tiers(context.Context) ([]Tier, error) { return []Tier{{Name: "ssd"}}, f.err }
func (f *fake) Backings(context.Context) ([]Backing, error) {
	return []Backing{{ID: 1, State: BackingFailed}}, f.err
}
func (f *fake) Volumes(context.Context) ([]Volume, error) { return []Volume{{Name: "v"}}, f.err }
func (f *fake) VolumesLost(context.Context) ([]VolumeLost, error) {
	return []VolumeLost{{Volume: "v", Ranges: []LostRange{{Offset: 4096, LengthBytes: 4096}}}}, f.err
}
func (f *fake) BackingForget(_ context.Context, r BackingForgetRequest) (BackingForgotten, error) {
	f.request = r
	return BackingForgotten{BackingID: 1, Volumes: []VolumeLoss{{"v", 4096}}, Changes: []string{"forgotten"}}, f.err
}
func (f *fake) backing(request any) (BackingChange, error) {
	f.request = request
	return BackingChange{BackingID: 4, Tier: "ssd", Changes: []string{"changed"}}, f.err
}
func (f *fake) BackingAdd(_ context.Context, r BackingAddRequest) (BackingChange, error) {
	return f.backing(r)
}
func (f *fake) BackingDrain(_ context.Context, r BackingDrainRequest) (BackingChange, error) {
	return f.backing(r)
}
func (f *fake) BackingRemove(_ context.Context, r BackingRemoveRequest) (BackingChange, error) {
	return f.backing(r)
}
func (f *fake) TierRemove(_ context.Context, r TierRemoveRequest) (BackingChange, error) {
	return f.backing(r)
}
func (f *fake) VolumeCreate(_ context.Context, r VolumeCreateRequest) (VolumeChange, error) {
	return f.change(r, r.Name)
}
func (f *fake) VolumeGrow(_ context.Context, r VolumeGrowRequest) (VolumeChange, error) {
	return f.change(r, r.Name)
}
func (f *fake) VolumeDelete(_ context.Context, r VolumeDeleteRequest) (VolumeChange, error) {
	return f.change(r, r.Name)
}
func (f *fake) VolumeRename(_ context.Context, r VolumeRenameRequest) (VolumeChange, error) {
	return f.change(r, r.NewName)
}
func (f *fake) VolumeSet(_ context.Context, r VolumeSetRequest) (VolumeChange, error) {
	return f.change(r, r.Name)
}
func (f *fake) RelocationStatus(context.Context) (RelocationStatus, error) { return f.relocation(nil) }
func (f *fake) RelocationPlan(_ context.Context, r RelocationPlanRequest) (RelocationPlan, error) {
	f.request = r
	return RelocationPlan{Summary: PlanSummary{Rejected: map[string]int64{"no_gain": 3}}, Moves: []Move{{Extent: 9}}}, f.err
}
func (f *fake) RelocationRun(ctx context.Context, r RelocationRunRequest) (RelocationStatus, error) {
	if f.wait != nil {
		if err := f.wait(ctx); err != nil {
			return RelocationStatus{}, err
		}
	}
	return f.relocation(r)
}
func (f *fake) RelocationPause(_ context.Context, r RelocationPauseRequest) (RelocationStatus, error) {
	return f.relocation(r)
}
func (f *fake) RelocationResume(_ context.Context, r RelocationPauseRequest) (RelocationStatus, error) {
	return f.relocation(r)
}
func (f *fake) Locate(_ context.Context, r LocateRequest) (Location, error) {
	f.request = r
	if r.Volume == "panic" {
		panic("on purpose")
	}
	return Location{Volume: r.Volume, Offset: r.Offset, Slot: 1<<32 - 1}, f.err
}
func (f *fake) Heat(_ context.Context, r HeatRequest) (HeatMap, error) {
	f.request = r
	return HeatMap{Volume: r.Volume, Levels: []byte{0, 255}, Tier: []byte{0, TierUnmapped}}, f.err
}
func (f *fake) Skew(_ context.Context, r SkewRequest) (Skew, error) {
	f.request = r
	return Skew{Volume: r.Volume, Points: []SkewPoint{{}, {Extents: 1, Heat: 1}}}, f.err
}

func (f *fake) Traces(context.Context) ([]TraceRecording, error) {
	return []TraceRecording{{Volume: "v", Records: 1 << 40}}, f.err
}
func (f *fake) TraceStop(_ context.Context, r TraceStopRequest) (TraceStopped, error) {
	f.request = r
	return TraceStopped{Recording: TraceRecording{Volume: r.Volume, DroppedRecords: 3}}, f.err
}

// start serves s on a unix socket until the test ends.
func start(t *testing.T, s Service, adjust ...func(*Server)) (*Client, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	srv := NewServer(s, slog.New(slog.NewTextHandler(&log, nil)))
	for _, a := range adjust {
		a(srv)
	}
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	client := Dial(socket)
	t.Cleanup(func() {
		client.Close()
		for range 2 { // idempotent
			if err := srv.Shutdown(context.Background()); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return client, &log
}

// Every method of Service, asked for through the socket with a request in which
// every field is set, gives what the Service itself gives for that request.
func TestEveryMethodOverTheSocket(t *testing.T) {
	far, near := &fake{}, &fake{}
	client, _ := start(t, far)
	methods := reflect.TypeFor[Service]()
	if got, want := len(routes()), methods.NumMethod(); got != want {
		t.Errorf("%d routes for %d methods", got, want)
	}
	for i := range methods.NumMethod() {
		name := methods.Method(i).Name
		args := []reflect.Value{reflect.ValueOf(t.Context())}
		if methods.Method(i).Type.NumIn() == 2 {
			request := reflect.New(methods.Method(i).Type.In(1)).Elem()
			fill(request)
			args = append(args, request)
		}
		want := reflect.ValueOf(near).MethodByName(name).Call(args)
		got := reflect.ValueOf(client).MethodByName(name).Call(args)
		if !got[1].IsNil() {
			t.Errorf("%s: %v", name, got[1])
			continue
		}
		if !reflect.DeepEqual(got[0].Interface(), want[0].Interface()) {
			t.Errorf("%s = %+v, want %+v", name, got[0], want[0])
		}
		if !reflect.DeepEqual(far.request, near.request) {
			t.Errorf("%s was asked %+v, want %+v", name, far.request, near.request)
		}
	}
}

// fill sets every field of a request to something.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("name with \"quotes\" and ü")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"one", "two"}))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
			switch e := f.Elem(); e.Kind() {
			case reflect.Slice:
				e.Set(reflect.ValueOf([]string{"one", "two"}))
			case reflect.String:
				e.SetString("value")
			case reflect.Bool:
				e.SetBool(true)
			default:
				e.SetInt(1 << 20)
			}
		default:
			f.SetInt(1 << 20)
		}
	}
}

func TestErrorsKeepTheirClass(t *testing.T) {
	tests := []struct {
		err      error
		class    error
		wantHint string
	}{
		{fmt.Errorf("volume %q: %w", "a", ErrNotFound), ErrNotFound, ""},
		{fmt.Errorf("volume %q: %w", "a", ErrExists), ErrExists, ""},
		{WithHint(fmt.Errorf("delete: %w", ErrBusy), "disconnect first"), ErrBusy, "disconnect first"},
		{fmt.Errorf("grow: %w", WithHint(ErrUsage, "be larger")), ErrUsage, "be larger"},
		{ErrUnavailable, ErrUnavailable, ""},
		{WithHint(errors.New("odd"), "call someone"), nil, "call someone"},
	}
	all := []error{ErrNotFound, ErrExists, ErrBusy, ErrUsage, ErrUnavailable, ErrNotRunning}
	s := &fake{}
	client, _ := start(t, s)
	for _, tt := range tests {
		s.err = tt.err
		_, err := client.Volumes(t.Context())
		if err == nil || err.Error() != tt.err.Error() || Hint(err) != tt.wantHint {
			t.Errorf("error %v with hint %q, want %v with %q", err, Hint(err), tt.err, tt.wantHint)
		}
		for _, class := range all {
			if got, want := errors.Is(err, class), class == tt.class; got != want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", err, class, got, want)
			}
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	_, err := Dial(socket).Tiers(t.Context())
	if !errors.Is(err, ErrNotRunning) || Hint(err) == "" {
		t.Errorf("no socket: %v with hint %q, want ErrNotRunning with one", err, Hint(err))
	}

	// A socket file that a killed daemon left behind.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(socket).Tiers(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("stale socket: %v, want ErrNotRunning", err)
	}
}

func TestRefusedRequests(t *testing.T) {
	client, _ := start(t, &fake{})
	tests := []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"unknown route", "POST", "/v1/pool-explode", "{}", 400, `no such request`},
		{"GET", "GET", "/v1/tiers", "", 400, `no such request`},
		{"unknown field", "POST", "/v1/volume-delete", `{"name":"a","dryrun":true}`, 400, `unknown field`},
		{"wrong type", "POST", "/v1/volume-delete", `{"name":7}`, 400, `cannot unmarshal`},
		{"two values", "POST", "/v1/tiers", `{}{}`, 400, `more than one value`},
		{"cut off", "POST", "/v1/locate", `{"volume":`, 400, `unexpected EOF`},
		{"too large", "POST", "/v1/locate", `{"volume":"` + strings.Repeat("x", maxRequestBytes) + `"}`, 400, `too large`},
		{"panic", "POST", "/v1/locate", `{"volume":"panic"}`, 500, `failed inside the daemon`},
		{"empty body", "POST", "/v1/tiers", "", 200, `"name":"ssd"`},
	}
	for _, tt := range tests {
		req, err := http.NewRequest(tt.method, "http://tierd"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.http.Do(req)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: status %d, %s; want %d with %q", tt.name, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

// A request may take longer than the deadline for reading it.
func TestLongRequestOutlivesTheReadDeadline(t *testing.T) {
	const deadline = time.Second
	s := &fake{wait: func(ctx context.Context) error {
		select {
		case <-time.After(2 * deadline):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	client, _ := start(t, s, func(srv *Server) { srv.http.ReadTimeout = deadline })
	if _, err := client.RelocationRun(t.Context(), RelocationRunRequest{Wait: true}); err != nil {
		t.Errorf("RelocationRun: %v", err)
	}
}

// Both a client that goes away and a server that stops end a request's context.
func TestWaitingRequestIsCancelled(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		entered, left := make(chan struct{}), make(chan error, 1)
		s := &fake{wait: func(ctx context.Context) error {
			close(entered)
			<-ctx.Done()
			left <- ctx.Err()
			return ctx.Err()
		}}
		var srv *Server
		client, _ := start(t, s, func(s *Server) { srv = s })
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			_, err := client.RelocationRun(ctx, RelocationRunRequest{Wait: true})
			answered <- err
		}()
		<-entered
		if who == "client" {
			cancel()
		} else if err := srv.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the service saw %v", who, err)
		}
		if err := <-answered; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the client got %v, want context.Canceled", who, err)
		}
		cancel()
	}
}
