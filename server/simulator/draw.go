package simulator

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/timespan"
	"github.com/penstock-io/penstock/server/replay"
)

const (
	width = 64 // of the time axis, in columns
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

// Draw draws the lanes for a terminal: for each algorithm the units that passed, at the
// time when they act, and those that were denied. Color is for a terminal that shows colors.
func (s *Simulation) Draw(w io.Writer, color bool) {
	d := drawing{color: color, length: s.length()}
	for i := range s.Lanes {
		d.columns(&s.Lanes[i])
	}
	for i := range s.Lanes {
		_, _ = io.WriteString(w, d.lane(&s.Lanes[i])+"\n")
	}
	_, _ = io.WriteString(w, d.axis()+"\n\n"+s.Summary+"\n")
}

// length is the time of the last arrival or act, and not zero.
func (s *Simulation) length() (last time.Duration) {
	for i := range s.Lanes {
		for _, r := range s.Lanes[i].Results {
			last = max(last, r.At, r.actsAt())
		}
	}
	return max(last, 1)
}

type drawing struct {
	color  bool
	length time.Duration
	most   int64 // in any column of any lane
}

// columns sums up the units that passed and were denied in each column.
func (d *drawing) columns(l *Lane) (passed, denied []int64) {
	passed, denied = make([]int64, width), make([]int64, width)
	for _, r := range l.Results {
		column := &denied[d.column(r.At)]
		if r.Allowed {
			column = &passed[d.column(r.actsAt())]
		}
		*column += r.Cost
		d.most = max(d.most, *column)
	}
	return passed, denied
}

func (d *drawing) column(at time.Duration) int {
	return min(int(float64(at)/float64(d.length)*width), width-1)
}

func (d *drawing) lane(l *Lane) string {
	name := l.Algorithm.String()
	if l.Written {
		name += " *"
	}
	if l.Err != nil {
		return fmt.Sprintf("%-18s %v\n", name, l.Err)
	}
	passed, denied := d.columns(l)
	most := fmt.Sprintf("%d in any %s", l.MostInPeriod, timespan.Text(l.Limit.Normal().Period))
	if l.Exceeds() {
		most = d.red(most + ", above the limit")
	}
	return fmt.Sprintf("%-18s %d of %d passed, at most %s\n%10s %s\n%10s %s\n",
		name, l.Passed, l.Offered, most, "passed", d.bars(passed), "denied", d.red(d.bars(denied)))
}

func (d *drawing) red(text string) string {
	if !d.color {
		return text
	}
	return red + text + plain
}

func (d *drawing) bars(units []int64) string { return replay.Bars(units, d.most) }

// axis draws the time from the first to the last arrival.
func (d *drawing) axis() string {
	end := d.length.Round(max(d.length/1000, 1)).String()
	return fmt.Sprintf("%11s0s%*s", "", width-len("0s"), end)
}
