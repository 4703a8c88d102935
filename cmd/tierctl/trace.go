package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
)

func newTraceCommand(g *globals) *cobra.Command {
	return group("trace", "Record the requests to a volume, and look at traces", "",
		newTraceRecordCommand(g), newTraceStopCommand(g), newTraceListCommand(g), newTraceInfoCommand(g))
}

func newTraceStopCommand(g *globals) *cobra.Command {
	var r control.TraceStopRequest
	c := &cobra.Command{
		Use:     "stop VOLUME",
		Short:   "End the recording of a volume",
		Long:    `Stop ends the recording of a volume in order, whoever began it.`,
		Example: "  tierctl trace stop home",
		Args:    args("VOLUME"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Volume = args[0]
			return ask(g, func(s control.Service) (control.TraceStopped, error) { return s.TraceStop(c.Context(), r) },
				func(w io.Writer, st control.TraceStopped) error {
					text := "recording of volume %s ended: %s in %s, %d dropped\n"
					if st.DryRun {
						text = "recording of volume %s would be ended: %s in %s, %d dropped so far\n"
					}
					rec := st.Recording
					_, err := fmt.Fprintf(w, text, clean(rec.Volume), count(rec.Records, "request"), size(rec.Bytes), rec.DroppedRecords)
					return err
				})
		},
	}
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "say what would be ended, and end nothing")
	return c
}

func newTraceListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the recordings under way",
		Long:    `List shows the volumes that are being recorded, and how much there is so far.`,
		Example: "  tierctl trace list",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return ask(g, func(s control.Service) ([]control.TraceRecording, error) { return s.Traces(c.Context()) }, showTraces)
		},
	}
}

func showTraces(w io.Writer, list []control.TraceRecording) error {
	t := newTable(w, "VOLUME", "SINCE", "FOR", "REQUESTS", "DROPPED", "SIZE", "MAX SIZE")
	for _, r := range list {
		duration, most := "-", "-"
		if r.ForSeconds > 0 {
			duration = seconds(r.ForSeconds)
		}
		if r.MaxSizeBytes > 0 {
			most = size(r.MaxSizeBytes)
		}
		t.row(r.Volume, timestamp(r.StartedAt), duration, r.Records, r.DroppedRecords, size(r.Bytes), most)
	}
	return t.flush()
}
