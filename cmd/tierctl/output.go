package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/units"
)

// print writes v as JSON, or calls table, as --output says.
func (g *globals) print(v any, table func(io.Writer) error) error {
	if g.output != "json" {
		return table(g.out)
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = fmt.Fprintf(g.out, "%s\n", data)
	return err
}

// A table aligns rows of cells.
type table struct{ w *tabwriter.Writer }

// newTable starts a table with the given heads.
func newTable(w io.Writer, heads ...any) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(heads) > 0 {
		t.row(heads...)
	}
	return t
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = clean(fmt.Sprint(c))
	}
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(texts, "\t"), "\t"))
}

// flush prints the table and returns the first error of writing it.
func (t *table) flush() error { return t.w.Flush() }

// clean keeps a foreign name from breaking a table, or a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func size(n int64) string { return units.Size(n).Human() }

// limit prints a number of bytes of which a negative one means no limit.
func limit(n int64) string {
	if n < 0 {
		return "no limit"
	}
	return size(n)
}

// count prints a number of things; noun is the word for one of them.
func count[N int | int64 | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// percent prints a share of 0 to 1.
func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 1, 64) + "%" }

// share prints part as a percentage of whole.
func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return percent(float64(part) / float64(whole))
}

// latency prints seconds as milliseconds; nothing measured is a dash.
func latency(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return strconv.FormatFloat(seconds*1000, 'f', 3, 64) + "ms"
}

// seconds prints a duration without more digits than people read.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d >= time.Minute {
		return units.Duration(d.Round(time.Second)).String()
	}
	return d.Round(time.Millisecond).String()
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// heatValue prints a heat: device seconds per second need small numbers.
func heatValue(h float64) string { return strconv.FormatFloat(h, 'g', 3, 64) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// terminalWidth returns the columns of the terminal w is, and whether it is one.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(ws.Col), true
}
