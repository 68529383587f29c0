package rules_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rules"
	"pgregory.net/rapid"
)

// The model finds the rule of a descriptor in the simplest way: a map from joined
// strings to nodes, built for each lookup, and patterns as regular expressions. It
// shares no code with the package.

type modelNode struct {
	key, value string
	requests   int // per second, which also identifies the rule; 0 if there is none
	shared     bool
	children   []*modelNode
}

func (s *modelNode) joined() string {
	if s.value == "" {
		return s.key
	}
	return s.key + "_" + s.value
}

func (s *modelNode) isPattern() bool { return strings.Contains(s.joined(), "*") }

func (s *modelNode) matchesPattern(joined string) bool {
	parts := strings.Split(s.joined(), "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, `.*`) + `\z`).MatchString(joined)
}

// model returns the number of requests of the rule that applies, or 0, and the key of
// the descriptor.
func model(top []*modelNode, entries []rules.Entry) (int, string) {
	var counted []rules.Entry
	for i, e := range entries {
		nodes := map[string]*modelNode{}
		for _, s := range top {
			nodes[s.joined()] = s
		}
		joined := e.Key + "_" + e.Value
		found, value := nodes[joined], e.Value
		for _, s := range top {
			if found == nil && s.isPattern() && s.matchesPattern(joined) {
				found = s
				if s.shared {
					value = strings.TrimPrefix(s.joined(), e.Key+"_")
				}
			}
		}
		if found == nil {
			found = nodes[e.Key]
		}
		if found == nil {
			return 0, ""
		}
		counted = append(counted, rules.Entry{Key: e.Key, Value: value})
		if i == len(entries)-1 {
			return found.requests, modelKey(counted)
		}
		top = found.children
	}
	return 0, ""
}

func modelKey(entries []rules.Entry) string {
	escape := strings.NewReplacer(`\`, `\\`, `|`, `\|`, `=`, `\=`).Replace
	var parts []string
	for _, e := range entries {
		parts = append(parts, escape(e.Key)+"="+escape(e.Value))
	}
	return strings.Join(parts, "|")
}

// writeYAML writes nodes as a list of descriptors.
func writeYAML(b *strings.Builder, nodes []*modelNode, indent string) {
	for _, s := range nodes {
		fmt.Fprintf(b, "%s- key: %s\n", indent, strconv.Quote(s.key))
		if s.value != "" {
			fmt.Fprintf(b, "%s  value: %s\n", indent, strconv.Quote(s.value))
		}
		if s.requests != 0 {
			fmt.Fprintf(b, "%s  rate_limit: {unit: second, requests_per_unit: %d}\n", indent, s.requests)
		}
		if s.shared {
			fmt.Fprintf(b, "%s  share_threshold: true\n", indent)
		}
		if len(s.children) > 0 {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			writeYAML(b, s.children, indent+"  ")
		}
	}
}

func modelFile(nodes []*modelNode) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	writeYAML(&b, nodes, "")
	return b.String()
}

// Few words in few forms, so that entries often match nodes.
var (
	nodeKeys   = rapid.SampledFrom([]string{"a", "b", "a_b", "a*", "*", "*_b", "a=b", `a\`})
	nodeValues = rapid.SampledFrom([]string{"", "", "a", "b", "b_a", "*", "a*", "*a", "a*a", "a*b", "*a*a*", "*a*b*", "**", "|", "é*"})
	entryKeys  = rapid.SampledFrom([]string{"a", "b", "a_b", "ab", "a*", "*", "c", "", "a=b", `a\`})
	texts      = rapid.StringOfN(rapid.SampledFrom([]rune(`ab_*|=\é`)), 0, 6, -1)
)

// drawNodes draws a list without duplicates; requests numbers the rules.
func drawNodes(t *rapid.T, depth int, requests *int) []*modelNode {
	var list []*modelNode
	seen := map[string]bool{}
	for range rapid.IntRange(0, 5).Draw(t, "nodes") {
		s := &modelNode{key: nodeKeys.Draw(t, "key"), value: nodeValues.Draw(t, "value")}
		if seen[s.joined()] {
			continue
		}
		seen[s.joined()] = true
		if rapid.IntRange(0, 3).Draw(t, "limit") > 0 {
			*requests++
			s.requests = *requests
		}
		s.shared = s.isPattern() && rapid.Bool().Draw(t, "shared")
		if depth > 0 && rapid.Bool().Draw(t, "deeper") {
			s.children = drawNodes(t, depth-1, requests)
		}
		list = append(list, s)
	}
	return list
}

// drawEntries draws a descriptor, most of whose entries match a node.
func drawEntries(t *rapid.T, nodes []*modelNode) (entries []rules.Entry) {
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		e := rules.Entry{Key: entryKeys.Draw(t, "entry key"), Value: texts.Draw(t, "entry value")}
		if len(nodes) > 0 && rapid.IntRange(0, 9).Draw(t, "matches") > 0 {
			s := rapid.SampledFrom(nodes).Draw(t, "node")
			e.Key = s.key
			if s.value != "" {
				e.Value = strings.ReplaceAll(s.value, "*", texts.Draw(t, "star"))
			}
			nodes = s.children
		}
		entries = append(entries, e)
	}
	return entries
}

func checkAgainstModel(t *rapid.T) {
	requests := 0
	nodes := drawNodes(t, 2, &requests)
	text := modelFile(nodes)
	set, err := rules.Parse(rules.File{Name: "d.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	buf := []byte("before ")
	for range 10 {
		entries := drawEntries(t, nodes)
		wantRule, wantKey := model(nodes, entries)
		r, got := set.Domain("d").Match(entries, buf)
		gotRule, gotKey := 0, strings.TrimPrefix(string(got), "before ")
		if r != nil {
			gotRule = int(r.RequestsPerUnit)
		}
		if wantRule == 0 {
			wantKey = ""
		}
		if gotRule != wantRule || gotKey != wantKey || !strings.HasPrefix(string(got), "before ") {
			t.Fatalf("%+v matched rule %d and %q, want rule %d and %q\n%s", entries, gotRule, got, wantRule, wantKey, text)
		}
		if x := set.Explain("d", entries); x.Rule != r || x.Key != gotKey || (r == nil) == (x.NoRule == "") {
			t.Fatalf("%+v is explained by %v, but matched rule %d and %q\n%s", entries, x, gotRule, gotKey, text)
		}
	}
}

func TestMatchAgreesWithModel(t *testing.T) { rapid.Check(t, checkAgainstModel) }

func FuzzMatch(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkAgainstModel)) }

// Different descriptors have different keys, however the same text is divided into
// parts.
func TestAppendKeyIsInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawAnyEntries(t, "a"), drawAnyEntries(t, "b")
		same := len(a) == len(b)
		for i := range min(len(a), len(b)) {
			same = same && a[i] == b[i]
		}
		keyA, keyB := string(rules.AppendKey(nil, a)), string(rules.AppendKey(nil, b))
		if (keyA == keyB) != same {
			t.Fatalf("%+v has the key %q, and %+v has %q", a, keyA, b, keyB)
		}
	})
}

func drawAnyEntries(t *rapid.T, label string) (entries []rules.Entry) {
	for range rapid.IntRange(1, 3).Draw(t, label) {
		entries = append(entries, rules.Entry{Key: texts.Draw(t, "key"), Value: texts.Draw(t, "value")})
	}
	return entries
}

// Rules have different names, and so have their limits, whatever the length.
func TestRuleAndLimitNamesAreUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		long := rapid.SampledFrom([]string{"", strings.Repeat("long", 10), strings.Repeat(`\`, 44), strings.Repeat("é", 30)})
		part := rapid.Custom(func(t *rapid.T) string {
			return long.Draw(t, "long") + rapid.StringMatching(`[ab/=\\]{1,3}`).Draw(t, "short")
		})
		names, limits := map[string]string{}, map[string]string{}
		for i := range 8 {
			domain := part.Draw(t, "domain")
			key, value, below := part.Draw(t, "key"), part.Draw(t, "value"), part.Draw(t, "below")
			text := fmt.Sprintf("domain: %q\ndescriptors:\n- key: %q\n  value: %q\n  limit: 1/s\n  descriptors:\n  - key: %q\n    limit: 1/s\n",
				domain, key, value, below)
			set, err := rules.Parse(rules.File{Name: strconv.Itoa(i), Text: []byte(text)})
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			for j, r := range set.Rules() {
				place := fmt.Sprintf("%q %q %q %q", domain, key, value, below)
				if j == 0 {
					place = fmt.Sprintf("%q %q %q", domain, key, value)
				}
				if other, ok := names[r.Name]; ok && other != place {
					t.Fatalf("%s and %s are both named %q", place, other, r.Name)
				}
				if other, ok := limits[r.Limit.Name]; ok && other != place {
					t.Fatalf("%s and %s both have a limit named %q", place, other, r.Limit.Name)
				}
				if len(r.Limit.Name) > 64 || r.Limit.Name != r.Name && isRuleName(r.Limit.Name) {
					t.Fatalf("the limit of %q is named %q, which is too long or could be another rule's", r.Name, r.Limit.Name)
				}
				names[r.Name], limits[r.Limit.Name] = place, place
			}
		}
	})
}

// isRuleName reports whether a name could be a rule's: every backslash precedes a
// character to escape.
func isRuleName(name string) bool {
	for i := 0; i < len(name); i++ {
		if name[i] != '\\' {
			continue
		}
		if i++; i == len(name) || !strings.Contains(`\/=`, name[i:i+1]) {
			return false
		}
	}
	return true
}
