// Package sentinelrules turns rules of Sentinel, in the JSON of its Go and Java versions, into a rule file.
package sentinelrules

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"go.yaml.in/yaml/v3"
)

// A rule has the fields of all kinds of rules, by which they are told apart. Java calls the threshold
// count, and what it counts grade.
type rule struct {
	Resource  string   `json:"resource"`
	Threshold *float64 `json:"threshold"`
	Count     *float64 `json:"count"`

	Grade             *int   `json:"grade"`      // 0 threads, 1 requests
	MetricType        *int   `json:"metricType"` // 0 concurrency, 1 requests
	ControlBehavior   int    `json:"controlBehavior"`
	MaxQueueingTimeMs int64  `json:"maxQueueingTimeMs"`
	LimitApp          string `json:"limitApp"`

	TokenCalculateStrategy int   `json:"tokenCalculateStrategy"`
	RelationStrategy       int   `json:"relationStrategy"`
	StatIntervalInMs       int64 `json:"statIntervalInMs"`
	Strategy               int   `json:"strategy"` // of a Java flow rule, its relation

	ParamIndex        *int            `json:"paramIndex"`
	ParamIdx          *int            `json:"paramIdx"`
	ParamKey          string          `json:"paramKey"`
	BurstCount        int64           `json:"burstCount"`
	DurationInSec     int64           `json:"durationInSec"`
	SpecificItems     json.RawMessage `json:"specificItems"`
	ParamFlowItemList []item          `json:"paramFlowItemList"`

	// Of circuit breaking rules.
	RetryTimeoutMs *int64 `json:"retryTimeoutMs"`
	TimeWindow     *int64 `json:"timeWindow"`
}

// An item is an exception for one value of a parameter.
type item struct {
	Value     json.RawMessage `json:"object"`
	ValStr    *string         `json:"valStr"`
	Count     float64         `json:"count"`
	Threshold float64         `json:"threshold"`
}

// A Converted is a rule file, and what the reader has to know of it.
type Converted struct {
	File  []byte
	Notes []string // what has no equivalent, or another meaning
	Rules int      // how many rules were converted
}

// Convert returns the rule file of a domain. The text is a list of rules, or an object of such lists.
func Convert(text []byte, domain string) (*Converted, error) {
	all, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := &converter{}
	for i := range all {
		c.add(i, &all[i])
	}
	if c.converted == 0 {
		return &Converted{Notes: c.notes}, nil
	}
	c.note("every limit holds for all processes together, where Sentinel counts in each of them unless a rule is for a cluster: multiply if that is meant")
	file, err := c.file(domain)
	if err == nil {
		_, err = rules.Parse(rules.File{Name: "converted", Text: file})
	}
	if err != nil {
		return nil, fmt.Errorf("the converted rules do not load: %w", err)
	}
	return &Converted{file, c.notes, c.converted}, nil
}

// file returns the rule file.
func (c *converter) file(domain string) ([]byte, error) {
	b := bytes.NewBufferString("# From rules of Sentinel. A request has the descriptor (resource, NAME), or the one of its rule.\n")
	e := yaml.NewEncoder(b)
	e.SetIndent(2)
	err := e.Encode(struct {
		Domain      string
		Descriptors []*node
	}{domain, c.top.Below})
	return b.Bytes(), err
}

// parse returns the rules of a text.
func parse(text []byte) (all []rule, err error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || trimmed[0] != '{' {
		if err = json.Unmarshal(text, &all); err != nil {
			err = fmt.Errorf("want a list of rules as JSON: %w", err)
		}
		return all, err
	}
	var lists map[string][]rule
	if err := json.Unmarshal(text, &lists); err != nil {
		return nil, fmt.Errorf("want a list of rules as JSON, or an object of such lists: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		all = append(all, lists[name]...)
	}
	return all, nil
}

// A converter collects limits in a tree of descriptors.
type converter struct {
	top       node
	notes     []string
	converted int
}

func (c *converter) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// add converts the rule of an index.
func (c *converter) add(i int, r *rule) {
	name := fmt.Sprintf("rule %d (%.80s)", i+1, cmp.Or(r.Resource, "no resource"))
	if problem := r.refusal(); problem != "" {
		c.note("%s: not converted: %s", name, problem)
		return
	}
	for _, remark := range r.remarks() {
		c.note("%s: %s", name, remark)
	}
	threshold := *cmp.Or(r.Threshold, r.Count)
	exact, err := c.addLimit(r, nil, threshold)
	if err != nil {
		c.note("%s: not converted: %v", name, err)
		return
	}
	if !exact {
		c.note("%s: a threshold of %g is rounded up", name, threshold)
	}
	c.converted++
	if r.isHotspot() {
		c.addItems(name, r)
	}
}

// addLimit adds the limit of a threshold, for a value of the rule's parameter if that is not nil. It reports
// whether the limit is exactly that of the threshold.
func (c *converter) addLimit(r *rule, value *string, threshold float64) (exact bool, err error) {
	text, exact := r.limit(threshold)
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return exact, err // before there is a node for it
	}
	return exact, c.nodeOf(r, value).addLimit(text, limit.HasPermits())
}

// addItems adds the exceptions of a rule.
func (c *converter) addItems(name string, r *rule) {
	items, err := r.items()
	if err != nil {
		c.note("%s: its items are not converted: %v", name, err)
	}
	for _, value := range slices.Sorted(maps.Keys(items)) {
		if value == "" || strings.Contains(value, "*") {
			c.note("%s: the item %.80q is not converted: an empty value, or a pattern here", name, value)
		} else if _, err := c.addLimit(r, &value, items[value]); err != nil {
			c.note("%s: the item %.80q is not converted: %v", name, value, err)
		}
	}
}

// isConcurrency reports whether the rule bounds requests in progress.
func (r *rule) isConcurrency() bool {
	return r.Grade != nil && *r.Grade == 0 || r.MetricType != nil && *r.MetricType == 0
}

// isHotspot reports whether the rule is about the values of a parameter.
func (r *rule) isHotspot() bool { return r.ParamIndex != nil || r.ParamIdx != nil || r.ParamKey != "" }

// isJava reports whether the rule has the names of the Java version.
func (r *rule) isJava() bool { return r.Count != nil }

// refusal returns why the rule has no equivalent, or "".
func (r *rule) refusal() string {
	switch relation := r.RelationStrategy + r.Strategy; {
	case r.RetryTimeoutMs != nil || r.TimeWindow != nil:
		return "a circuit breaking rule is overload.BreakerOptions in the program that calls"
	case r.Resource == "" || r.Threshold == nil && r.Count == nil:
		return "it is no flow, hot-spot or isolation rule; a system rule is an adaptive overload.Gate"
	case *cmp.Or(r.Threshold, r.Count) < 0 || *cmp.Or(r.Threshold, r.Count) > math.MaxInt32:
		return "its threshold is out of range"
	case relation != 0:
		return "it is about a related resource or a chain of calls"
	case r.LimitApp != "" && r.LimitApp != "default":
		return "it is for one origin: add a descriptor with that value below the resource"
	case !r.isHotspot() && !r.isJava() && r.TokenCalculateStrategy == memoryAdaptive:
		return "its threshold follows the memory"
	case r.BurstCount < 0 || r.BurstCount > math.MaxInt32 || r.MaxQueueingTimeMs < 0 || r.MaxQueueingTimeMs > maxSeconds*1000:
		return "its burst or queue is out of range"
	case r.DurationInSec < 0 || r.StatIntervalInMs < 0 || r.DurationInSec > maxSeconds || r.StatIntervalInMs > maxSeconds*1000:
		return "its interval is out of range"
	}
	return ""
}

const (
	maxSeconds     = 366 * 24 * 3600
	memoryAdaptive = 2 // a strategy of the Go version
)

// controls reports whether requests that do not fit wait, and whether the rule warms up. The versions number it differently.
func (r *rule) controls() (waits, warmsUp bool) {
	if r.isJava() { // 0 neither, 1 warms up, 2 waits, 3 both
		behavior := min(max(r.ControlBehavior, 0), 3)
		return behavior >= 2, behavior%2 == 1
	}
	return r.ControlBehavior == 1, r.TokenCalculateStrategy == 1
}

// remarks returns what is different here.
func (r *rule) remarks() (all []string) {
	if _, warmsUp := r.controls(); warmsUp {
		all = append(all, "converted without its warm-up, which is penstock.WithWarmUp in a program")
	}
	if r.isConcurrency() {
		all = append(all, "a permit that is not released expires after a minute; a request names it by the entry request_id")
	}
	if strings.Contains(r.Resource, "*") {
		all = append(all, "a * in the name of a resource stands for any text here")
	}
	return all
}

// limit returns the text of a limit, and whether it is exactly that of the threshold.
func (r *rule) limit(threshold float64) (text string, exact bool) {
	interval := cmp.Or(r.StatIntervalInMs, r.DurationInSec*1000, 1000)
	count, period := threshold, interval
	for m := int64(2); m <= 10 && count != math.Trunc(count); m++ { // 2.5 a second is 5 in two
		if scaled := threshold * float64(m); scaled == math.Trunc(scaled) {
			count, period = scaled, interval*m
		}
	}
	n, exact := int64(math.Ceil(count)), count == math.Trunc(count)
	rate := fmt.Sprintf("%d/%s", n, periodText(period))
	switch waits, _ := r.controls(); {
	case r.isConcurrency():
		return fmt.Sprintf("%d/1m concurrent", n), exact
	case waits && n > 0:
		return fmt.Sprintf("%s leaky-bucket burst=%d", rate, 1+r.MaxQueueingTimeMs*n/period), exact
	case r.isHotspot() && r.BurstCount > 0:
		return fmt.Sprintf("%s burst=%d", rate, n+r.BurstCount), exact
	case r.isHotspot():
		return rate, exact
	case r.StatIntervalInMs > 0:
		return rate + " fixed-window align=clock", exact
	}
	return rate + " rolling-window buckets=2", exact
}

func periodText(ms int64) string {
	if ms%1000 == 0 {
		return fmt.Sprintf("%ds", ms/1000)
	}
	return fmt.Sprintf("%dms", ms)
}

// items returns the exceptions of a hot-spot rule: a threshold for each value.
func (r *rule) items() (map[string]float64, error) {
	all := map[string]float64{}
	var list []item
	if len(r.SpecificItems) > 0 && json.Unmarshal(r.SpecificItems, &all) != nil {
		clear(all)
		if err := json.Unmarshal(r.SpecificItems, &list); err != nil {
			return nil, err
		}
	}
	for _, i := range append(list, r.ParamFlowItemList...) {
		value := strings.Trim(string(i.Value), `"`)
		if i.ValStr != nil {
			value = *i.ValStr
		}
		all[value] = cmp.Or(i.Count, i.Threshold)
	}
	return all, nil
}
