package respapi

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

// What a CL.THROTTLE costs on this side of the kernel.
func BenchmarkThrottle(b *testing.B) {
	c := newFakeClient(newServer(b, penstock.NewMemory(nil), nil, nil, nil))
	c.in = []byte(strings.Repeat(encode("CL.THROTTLE", "key:000000004711", "15", "30", "60"), 16))
	for b.Loop() {
		c.start, c.end = 0, len(c.in)
		c.executeBuffered()
		c.out.buf = c.out.buf[:0]
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(16*b.N), "ns/command")
}
