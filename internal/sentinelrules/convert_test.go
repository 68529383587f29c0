package sentinelrules_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sentinelrules"
	"github.com/penstock-io/penstock/rules"
)

// Each rule becomes the limits that are listed, as "rule limit", or a note.
func TestConvert(t *testing.T) {
	for _, c := range []struct{ name, rule, want, note string }{
		{"Go, default statistics", `{"resource":"a","threshold":100}`, `d/resource=a 100/1s rolling-window buckets=2`, "each of them"},
		{"Go, an interval", `{"resource":"a","threshold":10,"statIntervalInMs":500}`, `d/resource=a 10/500ms fixed-window align=clock`, ""},
		{"Go, throttling", `{"resource":"a","threshold":10,"controlBehavior":1,"maxQueueingTimeMs":450}`, `d/resource=a 10/1s leaky-bucket burst=5`, ""},
		{"Go, throttling without a queue", `{"resource":"a","threshold":10,"controlBehavior":1}`, `d/resource=a 10/1s leaky-bucket burst=1`, ""},
		{"Go, warm-up", `{"resource":"a","threshold":10,"tokenCalculateStrategy":1,"warmUpPeriodSec":10}`, `d/resource=a 10/1s rolling-window buckets=2`, "WithWarmUp"},
		{"Go, by memory", `{"resource":"a","threshold":10,"tokenCalculateStrategy":2}`, ``, "follows the memory"},
		{"Go, related", `{"resource":"a","threshold":10,"relationStrategy":1,"refResource":"b"}`, ``, "related resource"},
		{"Java", `{"resource":"GET:/a","limitApp":"default","grade":1,"count":20,"strategy":0,"controlBehavior":0}`, `d/resource=GET:\/a 20/1s rolling-window buckets=2`, ""},
		{"Java, a fraction", `{"resource":"a","grade":1,"count":2.5}`, `d/resource=a 5/2s rolling-window buckets=2`, ""},
		{"Java, an odd fraction", `{"resource":"a","grade":1,"count":0.123456}`, `d/resource=a 1/1s rolling-window buckets=2`, "rounded up"},
		{"Java, nothing", `{"resource":"a","grade":1,"count":0,"controlBehavior":2}`, `d/resource=a 0/1s rolling-window buckets=2`, ""},
		{"Java, a queue", `{"resource":"a","grade":1,"count":2,"controlBehavior":2,"maxQueueingTimeMs":2000}`, `d/resource=a 2/1s leaky-bucket burst=5`, ""},
		{"Java, warm-up and queue", `{"resource":"a","grade":1,"count":2,"controlBehavior":3,"maxQueueingTimeMs":500}`, `d/resource=a 2/1s leaky-bucket`, "WithWarmUp"},
		{"Java, threads", `{"resource":"a","grade":0,"count":8}`, `d/concurrency=a 8/1m concurrent`, "expires after a minute"},
		{"Java, an origin", `{"resource":"a","grade":1,"count":8,"limitApp":"shop"}`, ``, "one origin"},
		{"Go, hot-spot", `{"resource":"a","metricType":1,"paramIndex":0,"threshold":5,"burstCount":2,"durationInSec":3}`, `d/resource=a/param0 5/3s burst=7`, ""},
		{"Go, hot-spot by key", `{"resource":"a","metricType":1,"paramKey":"uid","threshold":5,"durationInSec":1,"specificItems":{"hot":50}}`, `d/resource=a/uid 5/1s; d/resource=a/uid=hot 50/1s`, ""},
		{"Go, hot-spot of a data source", `{"resource":"a","metricType":1,"paramIndex":1,"threshold":5,"durationInSec":1,"specificItems":[{"valKind":1,"valStr":"hot","threshold":50}]}`, `d/resource=a/param1 5/1s; d/resource=a/param1=hot 50/1s`, ""},
		{"Go, hot-spot concurrency", `{"resource":"a","metricType":0,"paramIndex":0,"threshold":5,"specificItems":{"hot":9}}`, `d/concurrency=a/param0 5/1m concurrent; d/concurrency=a/param0=hot 9/1m concurrent`, ""},
		{"Java, hot-spot", `{"resource":"a","grade":1,"paramIdx":0,"count":5,"durationInSec":1,"paramFlowItemList":[{"object":"7","count":50,"classType":"int"},{"object":8,"count":60}]}`, `d/resource=a/param0 5/1s; d/resource=a/param0=7 50/1s; d/resource=a/param0=8 60/1s`, ""},
		{"an item with a star", `{"resource":"a","metricType":1,"paramIndex":0,"threshold":5,"specificItems":{"h*t":50}}`, `d/resource=a/param0 5/1s`, "pattern"},
		{"Go, isolation", `{"resource":"a","metricType":0,"threshold":12}`, `d/concurrency=a 12/1m concurrent`, ""},
		{"two periods", `{"resource":"a","threshold":1},{"resource":"a","threshold":9,"statIntervalInMs":60000}`, `d/resource=a 1/1s rolling-window buckets=2; d/resource=a//1m 9/1m fixed-window align=clock`, ""},
		{"twice the same", `{"resource":"a","threshold":1},{"resource":"a","threshold":2}`, `d/resource=a 1/1s rolling-window buckets=2`, "rule 2 (a): not converted: another rule"},
		{"a limit that there is not, beside another", `{"resource":"b","threshold":2000000000.3,"paramIndex":0},{"resource":"a","threshold":1}`, `d/resource=a 1/1s rolling-window buckets=2`, "rule 1 (b): not converted"},
		{"items without a parameter", `{"resource":"a","threshold":1,"specificItems":{"hot":50}}`, `d/resource=a 1/1s rolling-window buckets=2`, ""},
		{"Go, a breaker", `{"resource":"a","strategy":0,"retryTimeoutMs":3000,"threshold":0.5}`, ``, "BreakerOptions"},
		{"Java, a breaker", `{"resource":"a","grade":1,"count":0.5,"timeWindow":3}`, ``, "BreakerOptions"},
		{"a system rule", `{"highestSystemLoad":3}`, ``, "overload.Gate"},
		{"out of range", `{"resource":"a","threshold":1e300}`, ``, "out of range"},
		{"a queue of an age", `{"resource":"a","threshold":10,"controlBehavior":1,"maxQueueingTimeMs":9223372036854775807}`, ``, "out of range"},
		{"a name to quote", `{"resource":"a: \"b\"\n#","threshold":1}`, `d/resource=a: "b"` + "\n" + `# 1/1s rolling-window buckets=2`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := sentinelrules.Convert([]byte("["+c.rule+"]"), "d")
			if err != nil {
				t.Fatal(err)
			}
			if limits := limitsOf(t, got.File); limits != c.want {
				t.Errorf("got  %s\nwant %s", limits, c.want)
			}
			if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) {
				t.Errorf("the notes are %q, want %q", notes, c.note)
			}
		})
	}
}

func limitsOf(t *testing.T, file []byte) string {
	t.Helper()
	if file == nil {
		return ""
	}
	set, err := rules.Parse(rules.File{Name: "converted", Text: file})
	if err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	var all []string
	for _, r := range set.Rules() {
		l := r.Limit
		l.Name = ""
		all = append(all, r.Name+" "+l.String())
	}
	return strings.Join(all, "; ")
}

func TestConvertObjectOfLists(t *testing.T) {
	got, err := sentinelrules.Convert([]byte(`{"flow":[{"resource":"a","threshold":1}],"isolation":[{"resource":"a","metricType":0,"threshold":2}]}`), "d")
	if err != nil || got.Rules != 2 {
		t.Errorf("got %+v, %v, want two rules", got, err)
	}
}

// Whatever the text is, the result is an error, or loads.
func FuzzConvert(f *testing.F) {
	f.Add(`[{"resource":"a","threshold":1,"paramKey":"request_id"},{"resource":"a","metricType":0,"threshold":2}]`)
	f.Add(`{"a":[{"resource":"*","count":1}]}`)
	f.Add(`[{"resource":"a","metricType":1,"paramIndex":0,"threshold":5,"specificItems":{"*":1,"":2}}]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := sentinelrules.Convert([]byte(text), "d"); err == nil {
			limitsOf(t, got.File)
		}
	})
}
