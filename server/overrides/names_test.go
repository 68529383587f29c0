package overrides_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/overrides"
)

func TestLimitNamesAreDistinct(t *testing.T) {
	long := strings.Repeat("ä", 32)
	seen := map[string]bool{}
	for _, name := range []string{"o/a", "o/b", long, long[:63] + "b"} {
		for _, distinct := range []string{"1", "2"} {
			n := overrides.LimitName(name, distinct)
			prefix, ok := overrides.PrefixOf(n)
			if err := penstock.PerMinute(1).WithName(n).Validate(); err != nil || seen[n] || !ok || prefix != overrides.LimitPrefix(name) {
				t.Errorf("%q: %q, prefix %q, %v", name, n, prefix, err)
			}
			seen[n] = true
		}
	}
	if _, ok := overrides.PrefixOf("o/a"); ok {
		t.Error("the name of a rule is taken for one of an override")
	}
}
