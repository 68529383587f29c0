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

// A metric is a number, and of how many it is: of a report, or the sum over some of its rules. One of the two may be nil.
type metric struct {
	ofAll  func(*Report) (n, of int64)
	ofRule func(*Rule) (n, of int64)
}

const metricNewlyDenied = "newly denied"

var metrics = map[string]metric{
	"denied": {
		ofAll:  func(r *Report) (n, of int64) { return r.Denied.most(), r.Requests },
		ofRule: func(r *Rule) (n, of int64) { return r.Denied.most(), r.Requests },
	},
	metricNewlyDenied: {
		ofAll:  func(r *Report) (n, of int64) { return r.Compared.NewlyDenied.most(), r.Requests },
		ofRule: func(r *Rule) (n, of int64) { return r.NewlyDenied, r.Requests },
	},
	"denied keys":    {ofRule: func(r *Rule) (n, of int64) { return r.DeniedKeys, r.Keys }},
	"not understood": {ofAll: (*Report).notUnderstood},
}

func (r *Report) notUnderstood() (n, of int64) {
	for i := range r.Logs {
		n, of = n+r.Logs[i].Bad, of+r.Logs[i].Lines
	}
	return n, of
}

// ParseCondition parses a condition.
func ParseCondition(text string) (Condition, error) {
	c := Condition{text: text}
	if !c.parse(strings.Fields(text)) {
		return c, fmt.Errorf("%q: %w", text, ErrBadCondition)
	}
	return c, nil
}

func (c *Condition) parse(words []string) (ok bool) {
	if len(words) > 2 && words[0] == "rule" {
		c.rule, words = words[1], words[2:]
	}
	if len(words) < 3 {
		return false
	}
	last := words[len(words)-1]
	switch verb := strings.Join(words[:len(words)-1], " "); verb {
	case "denies key", "does not deny key":
		var err error // such as that of bytes that are no text
		c.spared = verb != "denies key"
		c.keys, err = regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(last), `\*`, ".*") + "$")
		return err == nil
	}
	c.metric = strings.Join(words[:len(words)-2], " ")
	_, ok = metrics[c.metric]
	return ok && c.setComparison(words[len(words)-2], last)
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
	m := metrics[c.metric]
	if m.ofRule == nil || c.rule == "" && m.ofAll != nil {
		return m.ofAll(r)
	}
	for i := range r.Rules {
		if rule := &r.Rules[i]; c.isAbout(rule.Name) {
			ruleN, ruleOf := m.ofRule(rule)
			n, of = n+ruleN, of+ruleOf
		}
	}
	return n, of
}

func (c *Condition) isAbout(rule string) bool { return c.rule == "" || c.rule == rule }

// checkKeys returns why a report fails because of a key that was denied. If not all keys were counted, one
// of the others may be such a key.
func (c *Condition) checkKeys(s *statistics, o *Options) string {
	for i, rule := range o.Rules.Rules() {
		if !c.isAbout(rule.Name) {
			continue
		}
		for _, k := range s.rules[i].keys {
			if n := max(k.denied, k.atOnce); n > 0 && c.matches(k.key) {
				return fmt.Sprintf("%s: %s of %s is denied %s times", c.text, k.key, rule.Name, Thousands(n))
			}
		}
		if n := s.rules[i].othersDenied; n > 0 {
			return fmt.Sprintf("%s: %s denials are of keys that were not counted by themselves: raise --max-keys", c.text, Thousands(n))
		}
	}
	return ""
}

// checkSpared returns why a report fails because no such key was denied, by both bounds if there are two.
func (c *Condition) checkSpared(s *statistics, o *Options, bounds bool) string {
	seen, others := int64(0), int64(0)
	for i, rule := range o.Rules.Rules() {
		if !c.isAbout(rule.Name) {
			continue
		}
		for _, k := range s.rules[i].keys {
			if !c.matches(k.key) {
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
		return fmt.Sprintf("%s: %s requests are of keys that were not counted by themselves: raise --max-keys", c.text, Thousands(others))
	case seen == 0:
		return c.text + ": the logs have no such key"
	}
	return fmt.Sprintf("%s: there are %s such keys, and none is denied for certain", c.text, Thousands(seen))
}

// matches compares a key, or the value of its last entry, with the pattern. A star matches any text.
func (c *Condition) matches(key string) bool {
	return c.keys.MatchString(key) || c.keys.MatchString(key[strings.LastIndexByte(key, '=')+1:])
}
