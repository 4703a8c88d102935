package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// every is how often the table changes.
const every = 2 * time.Second

// table shows the load while it runs: in place on a terminal, else a line at a
// time.
type table struct {
	out    io.Writer
	whole  time.Duration
	inline bool // a terminal
	shown  int  // samples
	lines  int  // to go back over
}

func newTable(out io.Writer, whole time.Duration) *table {
	t := &table{out: out, whole: whole}
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		t.inline = err == nil
	}
	return t
}

// show brings the table up to date with what the meter has.
func (t *table) show(m *meter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.marks)
	if n == 0 || len(m.shots) != n+1 {
		return
	}
	var length time.Duration
	for _, s := range m.marks[t.shown:] {
		length += s.Length
	}
	if length < every-every/20 {
		return
	}
	e := m.edge(t.shown, n)
	list := views(m.shots[0], m.shots[t.shown], m.shots[n])
	at := m.marks[n-1].At
	if t.inline {
		t.redraw(at, e, list)
	} else {
		t.line(at, e, list)
	}
	t.shown = n
}

// line prints one line.
func (t *table) line(at time.Duration, e edge, list []view) {
	var b strings.Builder
	if t.shown == 0 {
		b.WriteString("For each tier: fill, share of the reads, IOPS, bytes moved in and out since the load began.\n\n")
		fmt.Fprintf(&b, "%5s %7s %8s", "TIME", "IOPS", "MEAN")
		for _, v := range list {
			fmt.Fprintf(&b, " | %-5s%5s %6s %8s %8s", strings.ToUpper(v.name), "READS", "IOPS", "IN", "OUT")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%4.0fs %7.0f %8s", at.Seconds(), e.iops, milliseconds(e.mean))
	for _, v := range list {
		fmt.Fprintf(&b, " | %4s %5s %6.0f %8s %8s", percent(v.fill), percent(v.share), v.iops, mib(v.in), mib(v.out))
	}
	fmt.Fprintln(t.out, b.String())
}

// redraw prints the table over the last one.
func (t *table) redraw(at time.Duration, e edge, list []view) {
	const width = 24
	var b strings.Builder
	if t.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", t.lines)
	}
	lines := []string{
		"",
		fmt.Sprintf("%3.0f of %.0f s   %6.0f requests/s, mean %s", at.Seconds(), t.whole.Seconds(), e.iops, milliseconds(e.mean)),
		"",
		fmt.Sprintf("%-5s %9s %5s %-*s %6s %8s %10s %10s", "TIER", "SIZE", "FILL", width+6, "READS", "", "IOPS", "MOVED IN", "MOVED OUT"),
	}
	for _, v := range list {
		n := int(v.share*width + 0.5)
		bar := strings.Repeat("#", n) + strings.Repeat(".", width-n)
		lines = append(lines, fmt.Sprintf("%-5s %9s %5s %s %5s %6s %8.0f %10s %10s",
			v.name, mib(v.size), percent(v.fill), bar, percent(v.share), "", v.iops, mib(v.in), mib(v.out)))
	}
	for _, l := range lines {
		b.WriteString("\x1b[2K" + l + "\n")
	}
	t.lines = len(lines)
	fmt.Fprint(t.out, b.String())
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
