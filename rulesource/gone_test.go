package rulesource_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// gone are answers of a server of which all rules are gone, but for what the server may still have in their place.
var gone = map[string][]string{
	"/rules.yaml":                     {"", "\n"},
	"/v1/kv/rules.yaml":               {"[]", `[{"Key":"rules.yaml","Value":null}]`, `[{"Key":"rules.yaml","Value":""}]`},
	"/v1/kv/rules/":                   {"[]", `[{"Key":"rules/","Value":null}]`, `[{"Key":"rules/empty/","Value":null},{"Key":"rules/","Value":""}]`},
	"/v3/kv/range":                    {`{"header":{"revision":"V"}}`, `{"header":{"revision":"V"},"kvs":[{"key":"cnVsZXMueWFtbA=="}]}`, `{"header":{"revision":"V"},"kvs":[{"key":"cnVsZXMv"},{"key":"cnVsZXMvYS8="}]}`},
	"/nacos/v1/cs/configs":            {"", "\n"},
	"/nacos/v3/client/cs/config":      {`{"data":null}`, `{"data":{"content":""}}`},
	"/configs/app/default/rules.yaml": {"{}", `{"configurations":{}}`, `{"configurations":{"content":""}}`},
}

// Rules that are all gone stay in force, as those that are wrong do, and the program is told of it.
func TestNoRulesAreToldToWatch(t *testing.T) {
	t.Parallel()
	for _, kind := range append(sources("HOST"), "etcd://HOST/rules/") {
		for i := range 3 {
			t.Run(fmt.Sprint(kind, i), func(t *testing.T) {
				t.Parallel()
				testGone(t, kind, i)
			})
		}
	}
}

func testGone(t *testing.T, kind string, which int) {
	var isGone atomic.Bool
	var version, number atomic.Int64
	number.Store(1)
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		now := fmt.Sprint(version.Add(1))
		body, header, hasRules := answerRules(r, limitFile(int(number.Load())), now)
		if hasRules && isGone.Load() {
			forms := gone[r.URL.Path]
			body = strings.ReplaceAll(forms[min(which, len(forms)-1)], "V", now)
		}
		for name := range header {
			w.Header().Set(name, header.Get(name))
		}
		_, _ = w.Write([]byte(body))
	})
	source := openSource(t, strings.Replace(kind, "HOST", host, 1), "", "")
	load(t, source)
	w := watch(t, source)
	isGone.Store(true)
	if r := w.next(); r.err == nil || r.set != nil {
		t.Fatalf("loaded %v, %v, want an error", r.set, r.err)
	}
	if _, err := openSource(t, strings.Replace(kind, "HOST", host, 1), "", "").Load(t.Context()); err == nil {
		t.Error("a start without rules: want an error")
	}
	number.Store(2)
	isGone.Store(false)
	w.wantCount(2)
}
