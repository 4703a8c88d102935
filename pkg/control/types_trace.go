package control

import (
	"context"
	"io"
	"time"
)

// Recorder is a Service that records the requests to volumes, too.
type Recorder interface {
	// TraceRecord records a volume and writes the recording to w, which is a file of
	// pkg/trace's own format: the head at once, the rest as it comes. It returns when
	// the recording has ended, for one of the reasons asked for, by TraceStop, because
	// the volume was deleted or the daemon stops; the recording says why. An error
	// before the first byte is that of any request; later ones are those of w.
	TraceRecord(ctx context.Context, r TraceRecordRequest, w io.Writer) error
}

// TraceRecordRequest records the requests to a volume.
type TraceRecordRequest struct {
	Volume       string  `json:"volume"`
	ForSeconds   float64 `json:"for_seconds"`    // 0: until it is stopped
	MaxSizeBytes int64   `json:"max_size_bytes"` // of the recording; 0: no bound
	Compress     bool    `json:"compress"`
	// Token is a word of the asker's choice, by which it can stop its own recording
	// and no other.
	Token  string `json:"token"`
	DryRun bool   `json:"dry_run"` // nothing is recorded, nor written
}

// TraceRecording is a recording under way.
type TraceRecording struct {
	Volume         string    `json:"volume"`
	StartedAt      time.Time `json:"started_at"`
	ForSeconds     float64   `json:"for_seconds"`    // 0: until it is stopped
	MaxSizeBytes   int64     `json:"max_size_bytes"` // 0: no bound
	Records        int64     `json:"records"`
	Bytes          int64     `json:"bytes"`           // sent so far
	DroppedRecords int64     `json:"dropped_records"` // missing, because the asker was too slow
}

// TraceStopRequest ends the recording of a volume.
type TraceStopRequest struct {
	Volume string `json:"volume"`
	Token  string `json:"token"` // "": whoever's it is
	DryRun bool   `json:"dry_run"`
}

// TraceStopped is a recording that was ended, or would be.
type TraceStopped struct {
	Recording TraceRecording `json:"recording"`
	DryRun    bool           `json:"dry_run"` // nothing was done
}
