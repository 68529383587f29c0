package httpserver

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

func TestAppendDecisionHasAllMembers(t *testing.T) {
	s := penstock.Decision{
		Allowed: true, Granted: -3, Limit: math.MaxInt64, Remaining: 1,
		RetryAfter: penstock.Never, ResetAfter: time.Nanosecond, Delay: 90 * time.Second, Source: penstock.SourceLease,
	}
	want := `"allowed":true,"granted":-3,"limit":9223372036854775807,"remaining":1,` +
		`"retry_after":null,"reset_after":0.000000001,"delay":90,"source":"lease"`
	if got := string(AppendDecision(nil, &s)); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// A rapid check that every duration parses back to the same nanosecond.
func TestAppendSecondsIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := time.Duration(rapid.Int64Range(-math.MaxInt64, math.MaxInt64-1).Draw(t, "duration"))
		text := string(AppendSeconds(nil, s))
		if got, err := time.ParseDuration(text + "s"); err != nil || got != s {
			t.Fatalf("%v is written as %s, which parses as %v, %v", s, text, got, err)
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%s is not JSON", text)
		}
	})
}
