package server_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/observe"
)

// Daemons with everything on that watches them, whose Redis stops: calls that are traced take longer than the last
// bound of the histograms. This daemon and the other count each of them.
func TestServersCountSlowTracedCalls(t *testing.T) {
	t.Parallel() // it waits most of the time
	stalling := redistest.StartForTest(t, redistest.Options{})
	prefix := rand.Text()
	var all []*daemon
	for _, name := range []string{"a", "b"} {
		all = append(all, startConfig(t, load(t, map[string]string{
			"store": "redis://" + stalling.Addr, "redis-prefix": prefix, "redis-timeout": "600ms", "deny-cache": "false", "name": name,
			"data": t.TempDir(), "rules": writeRules(t, shopRules), "trace-keys": "true",
		}, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")))
	}
	if err := stalling.Pause(); err != nil {
		t.Fatal(err)
	}
	const calls = 30
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() { postTraced(t, all[0], fmt.Sprintf(`{"key":"k%d","limit":"5/1h"}`, i)) })
	}
	wg.Wait()
	if err := stalling.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		awaitSlowly(d, "the slow calls are counted", func() bool {
			live := observed[observe.Live](t, d, "/v1/live?scope=all&window=1h")
			return len(live.Daemons) == 2 && len(live.Listeners) > 1 && live.Listeners[1].Calls == calls
		})
	}
	live := observed[observe.Live](t, all[0], "/v1/live?window=1h")
	if p99 := live.Listeners[1].P99; p99 == nil || *p99 < 0.26 {
		t.Errorf("no call was slow: %+v", live.Listeners[1])
	}
}

// postTraced asks with the header of a trace that is sampled.
func postTraced(t *testing.T, d *daemon, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.addr("http")+"/v1/take", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Traceparent": {sampled}}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d", body, answer.StatusCode)
	}
}
