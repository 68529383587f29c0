package replay

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Condition is one under which a report fails: "denied > 0.1%", "rule shop/user newly denied > 10",
// "rule shop/user denies key vip:*", "does not deny key 203.0.113.9".
type Condition struct {
	text    string
	rule    string // "" for all
	metric  string
	over    float64
	percent bool
	orEqual bool
	keys    *regexp.Regexp // then there is no metric
	spared  bool           // that they are not denied
}

// ErrBadCondition is the error of a text that is no condition.
var ErrBadCondition = errors.New(`bad condition: want [rule NAME] denied|newly denied|denied keys|not understood > NUMBER[%], or [rule NAME] denies|does not deny key PATTERN`)

// The metrics of conditions.
const (
	metricDenied        = "denied"
	metricNewlyDenied   = "newly denied"
	metricDeniedKeys    = "denied keys"
	metricNotUnderstood = "not understood"
)

// ParseCondition parses a condition.
func ParseCondition(text string) (Condition, error) {
	c := Condition{text: text}
	words := strings.Fields(text)
	if len(words) > 2 && words[0] == "rule" {
		c.rule, words = words[1], words[2:]
	}
	if len(words) < 3 {
		return c, fmt.Errorf("%q: %w", text, ErrBadCondition)
	}
	last := words[len(words)-1]
	switch verb := strings.Join(words[:len(words)-1], " "); verb {
	case "denies key", "does not deny key":
		var err error
		c.spared = verb != "denies key"
		if c.keys, err = regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(last), `\*`, ".*") + "$"); err != nil {
			return c, fmt.Errorf("%q: %w", text, ErrBadCondition) // such as bytes that are no text
		}
		return c, nil
	}
	if !c.setComparison(words[len(words)-2], last) {
		return c, fmt.Errorf("%q: %w", text, ErrBadCondition)
	}
	switch c.metric = strings.Join(words[:len(words)-2], " "); c.metric {
	case metricDenied, metricNewlyDenied, metricDeniedKeys, metricNotUnderstood:
		return c, nil
	}
	return c, fmt.Errorf("%q: %w", text, ErrBadCondition)
}

func (c *Condition) setComparison(operator, number string) (ok bool) {
	number, c.percent = strings.CutSuffix(number, "%")
	f, err := strconv.ParseFloat(number, 64)
	c.over, c.orEqual = f, operator == ">="
	return err == nil && f >= 0 && (operator == ">" || c.orEqual)
}

// CheckRules returns an error if a condition is about rules that there are not.
func (c *Condition) CheckRules(o *Options) error {
	if c.rule != "" && o.Rules.Rule(c.rule) == nil {
		return fmt.Errorf("%q: there is no rule %s", c.text, c.rule)
	}
	if c.metric == metricNewlyDenied && o.Compare == nil {
		return fmt.Errorf("%q: needs rules to compare with", c.text)
	}
	return nil
}

// check returns why a report fails, or "". Of two bounds the larger counts.
func (c *Condition) check(r *Report, s *statistics, o *Options) string {
	switch {
	case c.spared:
		return c.checkSpared(s, o, r.Denied.AtOnce != nil)
	case c.keys != nil:
		return c.checkKeys(s, o)
	}
	n, of := c.values(r)
	value := float64(n)
	if c.percent {
		value = 100 * value / float64(max(of, 1))
	}
	if value < c.over || value == c.over && !c.orEqual {
		return ""
	}
	return fmt.Sprintf("%s: %s", c.text, countAndShare(n, of))
}

// values returns a number, and of how many it is.
func (c *Condition) values(r *Report) (n, of int64) {
	switch {
	case c.metric == metricNotUnderstood:
		for i := range r.Logs {
			n, of = n+r.Logs[i].Bad, of+r.Logs[i].Lines
		}
		return n, of
	case c.rule == "" && c.metric == metricDenied:
		return r.Denied.most(), r.Requests
	case c.rule == "" && c.metric == metricNewlyDenied:
		return r.Compared.NewlyDenied.most(), r.Requests
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		if c.rule != "" && rule.Name != c.rule {
			continue
		}
		switch c.metric {
		case metricDenied:
			n, of = n+rule.Denied.most(), of+rule.Requests
		case metricNewlyDenied:
			n, of = n+rule.NewlyDenied, of+rule.Requests
		default:
			n, of = n+rule.DeniedKeys, of+rule.Keys
		}
	}
	return n, of
}

// checkKeys returns why a report fails because of a key that was denied. If not all keys were counted, one
// of the others may be such a key.
func (c *Condition) checkKeys(s *statistics, o *Options) string {
	for i, rule := range o.Rules.Rules() {
		if c.rule != "" && rule.Name != c.rule {
			continue
		}
		keys := &s.rules[i].keys
		for j := range keys.all {
			k := &keys.all[j]
			if key, n := keys.text(k), max(k.denied, k.atOnce); n > 0 && c.matches(key) {
				return fmt.Sprintf("%s: %s of %s is denied %s times", c.text, key, rule.Name, thousands(n))
			}
		}
		if n := s.rules[i].othersDenied; n > 0 {
			return fmt.Sprintf("%s: %s denials are of keys that were not counted by themselves: raise --max-keys", c.text, thousands(n))
		}
	}
	return ""
}

// checkSpared returns why a report fails because no such key was denied, by both bounds if there are two.
func (c *Condition) checkSpared(s *statistics, o *Options, bounds bool) string {
	seen, others := int64(0), int64(0)
	for i, rule := range o.Rules.Rules() {
		if c.rule != "" && rule.Name != c.rule {
			continue
		}
		keys := &s.rules[i].keys
		for j := range keys.all {
			k := &keys.all[j]
			if !c.matches(keys.text(k)) {
				continue
			}
			if k.denied > 0 && (k.atOnce > 0 || !bounds) {
				return ""
			}
			seen++
		}
		others += s.rules[i].others
	}
	switch {
	case others > 0:
		return fmt.Sprintf("%s: %s requests are of keys that were not counted by themselves: raise --max-keys", c.text, thousands(others))
	case seen == 0:
		return c.text + ": the logs have no such key"
	}
	return fmt.Sprintf("%s: there are %s such keys, and none is denied for certain", c.text, thousands(seen))
}

// matches compares a key, or the value of its last entry, with the pattern. A star matches any text.
func (c *Condition) matches(key string) bool {
	return c.keys.MatchString(key) || c.keys.MatchString(key[strings.LastIndexByte(key, '=')+1:])
}
