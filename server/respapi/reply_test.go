package respapi

import (
	"strings"
	"testing"
)

// Errors repeat only the beginning of long arguments.
func TestReplyErrorsAreTruncated(t *testing.T) {
	c := newFakeClient(newServerWithClock(newFakeClock()))
	long := strings.Repeat("x", 50_000)
	for _, words := range [][]string{
		{"CL.THROTTLE", "k", long, "30", "60"},
		{long},
		{"NOPE", long, long[:10_000]},
		{"CLIENT", long},
		{"HELLO", "3", long},
		{"CLIENT", "SETINFO", long, "x"},
		{"COMMAND", long},
	} {
		if got := c.do(t, words...); got[0] != '-' || len(got) > 1000 {
			t.Errorf("%.20q: the error has %d bytes: %.80s", words, len(got), got)
		}
	}
}
