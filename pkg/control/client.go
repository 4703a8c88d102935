package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

const (
	dialTimeout   = 5 * time.Second
	maxReplyBytes = 256 << 20 // a heat map is the largest reply
)

// A Client asks a daemon over its socket. It is a Service itself; its errors
// are *Error where the daemon answered, and wrap ErrNotRunning where none did.
type Client struct {
	socket string
	http   *http.Client
}

var (
	_ Service  = (*Client)(nil)
	_ Recorder = (*Client)(nil)
)

// Dial returns a Client for the daemon at socket. Nothing is sent until the
// first request.
func Dial(socket string) *Client {
	dialer := net.Dialer{Timeout: dialTimeout}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call sends request to a route and decodes the reply.
func call[Reply any](ctx context.Context, c *Client, name string, request any) (Reply, error) {
	var reply Reply
	body, err := json.Marshal(request)
	if err != nil {
		return reply, fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.post(ctx, name, bytes.NewReader(body))
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReplyBytes))
	if err != nil {
		return reply, fmt.Errorf("read reply: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return reply, c.failure(resp.Status, data)
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return reply, fmt.Errorf("decode reply: %w", err)
	}
	return reply, nil
}

// post sends a request to a route and returns the response, whatever its status.
func (c *Client) post(ctx context.Context, name string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://tierd"+prefix+name, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	return resp, nil
}

// failure returns the error that the body of a reply with another status than OK has.
func (c *Client) failure(status string, body []byte) error {
	var wire Error
	if err := json.Unmarshal(body, &wire); err != nil || wire.Text == "" {
		return fmt.Errorf("%s answers %s, which is not tierd's way", c.socket, status)
	}
	return &wire
}

// explain words the errors of a connection for an administrator.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return WithHint(fmt.Errorf("nobody answers at %s: %w", c.socket, ErrNotRunning),
			"start tierd, or name its socket with --socket or --config")
	case errors.Is(err, os.ErrPermission):
		return WithHint(fmt.Errorf("open %s: %w", c.socket, os.ErrPermission), "be root or in the socket's group")
	}
	return fmt.Errorf("ask %s: %w", c.socket, err)
}

// PoolStatus implements Service.
func (c *Client) PoolStatus(ctx context.Context) (PoolStatus, error) {
	return call[PoolStatus](ctx, c, routePoolStatus, none{})
}

// Tiers implements Service.
func (c *Client) Tiers(ctx context.Context) ([]Tier, error) {
	return call[[]Tier](ctx, c, routeTiers, none{})
}

// Backings implements Service.
func (c *Client) Backings(ctx context.Context) ([]Backing, error) {
	return call[[]Backing](ctx, c, routeBackings, none{})
}

// Volumes implements Service.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	return call[[]Volume](ctx, c, routeVolumes, none{})
}

// VolumesLost implements Service.
func (c *Client) VolumesLost(ctx context.Context) ([]VolumeLost, error) {
	return call[[]VolumeLost](ctx, c, routeVolumesLost, none{})
}

// BackingAdd implements Service.
func (c *Client) BackingAdd(ctx context.Context, r BackingAddRequest) (BackingChange, error) {
	return call[BackingChange](ctx, c, routeBackingAdd, r)
}

// BackingDrain implements Service.
func (c *Client) BackingDrain(ctx context.Context, r BackingDrainRequest) (BackingChange, error) {
	return call[BackingChange](ctx, c, routeBackingDrain, r)
}

// BackingRemove implements Service.
func (c *Client) BackingRemove(ctx context.Context, r BackingRemoveRequest) (BackingChange, error) {
	return call[BackingChange](ctx, c, routeBackingRemove, r)
}

// TierRemove implements Service.
func (c *Client) TierRemove(ctx context.Context, r TierRemoveRequest) (BackingChange, error) {
	return call[BackingChange](ctx, c, routeTierRemove, r)
}

// BackingForget implements Service.
func (c *Client) BackingForget(ctx context.Context, r BackingForgetRequest) (BackingForgotten, error) {
	return call[BackingForgotten](ctx, c, routeBackingForget, r)
}

// VolumeCreate implements Service.
func (c *Client) VolumeCreate(ctx context.Context, r VolumeCreateRequest) (VolumeChange, error) {
	return call[VolumeChange](ctx, c, routeVolumeCreate, r)
}

// VolumeGrow implements Service.
func (c *Client) VolumeGrow(ctx context.Context, r VolumeGrowRequest) (VolumeChange, error) {
	return call[VolumeChange](ctx, c, routeVolumeGrow, r)
}

// VolumeDelete implements Service.
func (c *Client) VolumeDelete(ctx context.Context, r VolumeDeleteRequest) (VolumeChange, error) {
	return call[VolumeChange](ctx, c, routeVolumeDelete, r)
}

// VolumeRename implements Service.
func (c *Client) VolumeRename(ctx context.Context, r VolumeRenameRequest) (VolumeChange, error) {
	return call[VolumeChange](ctx, c, routeVolumeRename, r)
}

// VolumeSet implements Service.
func (c *Client) VolumeSet(ctx context.Context, r VolumeSetRequest) (VolumeChange, error) {
	return call[VolumeChange](ctx, c, routeVolumeSet, r)
}

// RelocationStatus implements Service.
func (c *Client) RelocationStatus(ctx context.Context) (RelocationStatus, error) {
	return call[RelocationStatus](ctx, c, routeRelocationStatus, none{})
}

// RelocationPlan implements Service.
func (c *Client) RelocationPlan(ctx context.Context, r RelocationPlanRequest) (RelocationPlan, error) {
	return call[RelocationPlan](ctx, c, routeRelocationPlan, r)
}

// RelocationRun implements Service.
func (c *Client) RelocationRun(ctx context.Context, r RelocationRunRequest) (RelocationStatus, error) {
	return call[RelocationStatus](ctx, c, routeRelocationRun, r)
}

// RelocationPause implements Service.
func (c *Client) RelocationPause(ctx context.Context, r RelocationPauseRequest) (RelocationStatus, error) {
	return call[RelocationStatus](ctx, c, routeRelocationPause, r)
}

// RelocationResume implements Service.
func (c *Client) RelocationResume(ctx context.Context, r RelocationPauseRequest) (RelocationStatus, error) {
	return call[RelocationStatus](ctx, c, routeRelocationResume, r)
}

// Locate implements Service.
func (c *Client) Locate(ctx context.Context, r LocateRequest) (Location, error) {
	return call[Location](ctx, c, routeLocate, r)
}

// Heat implements Service.
func (c *Client) Heat(ctx context.Context, r HeatRequest) (HeatMap, error) {
	return call[HeatMap](ctx, c, routeHeat, r)
}

// Skew implements Service.
func (c *Client) Skew(ctx context.Context, r SkewRequest) (Skew, error) {
	return call[Skew](ctx, c, routeSkew, r)
}

// Traces implements Service.
func (c *Client) Traces(ctx context.Context) ([]TraceRecording, error) {
	return call[[]TraceRecording](ctx, c, routeTraces, none{})
}

// TraceStop implements Service.
func (c *Client) TraceStop(ctx context.Context, r TraceStopRequest) (TraceStopped, error) {
	return call[TraceStopped](ctx, c, routeTraceStop, r)
}
