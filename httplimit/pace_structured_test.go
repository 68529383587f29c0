package httplimit_test

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func TestServiceLimits(t *testing.T) {
	for field, want := range map[string]string{
		`"default";r=50;t=30`:                          "[[50 30]] true",
		`"default";r=999;pk=:dHJpYWwxMjEzMjM=:`:        "[[999 -1]] true",
		`"a";r=1;t=2, "b";r=3;t=4`:                     "[[1 2] [3 4]] true",
		"\"a\";r=1;t=2\t,\t\"b\";r=3":                  "[[1 2] [3 -1]] true",
		`"a\"b\\c, d;r=9";r=1`:                         "[[1 -1]] true",
		`"";r=0;t=0`:                                   "[[0 0]] true",
		`"a";t=1;r=1;r=2`:                              "[[2 1]] true",
		`"a"; r=1;  t=2`:                               "[[1 2]] true",
		`"a";r=1;x;y=?1;z="s";u=tok/en;d=1.5;n=-3;*=*`: "[[1 -1]] true",
		`"a";r=999999999999999`:                        "[[999999999999999 -1]] true",
		`  "a";r=1  `:                                  "[[1 -1]] true",
		``:                                             "[] false",
		`"a"`:                                          "[] false",
		`"a";t=1`:                                      "[] false",
		`"a";r`:                                        "[] false",
		`"a";r=-1`:                                     "[] false",
		`"a";r=1.0`:                                    "[] false",
		`"a";r=1;t=x`:                                  "[] false",
		`"a";r=1,`:                                     "[] false",
		`"a";r=1,,"b";r=1`:                             "[] false",
		`"a";r=1 "b";r=1`:                              "[] false",
		`"a;r=1`:                                       "[] false",
		`"a\x";r=1`:                                    "[] false",
		"\"a\x00\";r=1":                                "[] false",
		"\"\xc3\xb6\";r=1":                             "[] false",
		`a;r=1`:                                        "[] false",
		`1;r=1`:                                        "[] false",
		`"a";R=1`:                                      "[] false",
		`"a";=1`:                                       "[] false",
		`"a";1=1`:                                      "[] false",
		`"a";r=`:                                       "[] false",
		`"a";r=1;x=`:                                   "[] false",
		`"a";r=1;x=?2`:                                 "[] false",
		`"a";r=1;x=:!:`:                                "[] false",
		`"a";r=1;x=(1)`:                                "[] false",
		`"a";r=1;x=1.2345`:                             "[] false",
		`"a";r=1;x=1.`:                                 "[] false",
		`"a";r=1;x=-`:                                  "[] false",
		`"a";r=9999999999999999`:                       "[] false",
		strings.Repeat(`"a";r=1,`, 64) + `"a";r=1`: "[] false",
		`"` + strings.Repeat("a", 1<<20) + `";r=1`: "[] false",
	} {
		if got := fmt.Sprint(httplimit.ServiceLimits(field)); got != want {
			t.Errorf("%.60s: %s, want %s", field, got, want)
		}
	}
	if got, ok := httplimit.ServiceLimits(`"a";r=1;t=2`, `"b";r=3`); !ok || !slices.Equal(got, [][2]int64{{1, 2}, {3, -1}}) {
		t.Errorf("two lines: %v, %v", got, ok)
	}
	if got, ok := httplimit.ServiceLimits(); ok {
		t.Errorf("no lines: %v", got)
	}
}

// What one end writes, the other reads.
func FuzzServiceLimits(f *testing.F) {
	f.Add("reads", int64(12), int64(time.Minute), `"a";r=1`)
	f.Add("\"\\\x00", int64(math.MaxInt64), int64(math.MaxInt64-1), `"a";x="\"`)
	f.Fuzz(func(t *testing.T, policy string, remaining, retry int64, garbage string) {
		h := http.Header{}
		d := penstock.Decision{Remaining: remaining, RetryAfter: time.Duration(max(retry, 1))}
		a := httplimit.Answer{Policy: policy, Limit: penstock.PerMinute(10), Decision: d}
		httplimit.IETF.SetHeaders(h, []httplimit.Answer{a, a})
		got, ok := httplimit.ServiceLimits(h["Ratelimit"]...)
		left, window := min(max(remaining, 0), 999_999_999_999_999), int64(-1)
		if s, ok := httplimit.RetryAfterSeconds(d); ok {
			window = s
		}
		if want := [][2]int64{{left, window}, {left, window}}; len(policy) < 1000 && (!ok || !slices.Equal(got, want)) {
			t.Errorf("%q is read as %v, %v, want %v", h["Ratelimit"], got, ok, want)
		}
		if items, ok := httplimit.ServiceLimits(garbage); ok != (len(items) > 0) {
			t.Errorf("%q: %v, %v", garbage, items, ok)
		}
		for _, item := range func() [][2]int64 { items, _ := httplimit.ServiceLimits(garbage); return items }() {
			if item[0] < 0 || item[1] < -1 {
				t.Errorf("%q has %v", garbage, item)
			}
		}
	})
}
