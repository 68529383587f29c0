package rulesource_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
)

// A centre is a configuration centre under test.
type centre interface {
	url() string
	credentials() string
	set(t *testing.T, text string) // publishes a version
	stop(t *testing.T)
	start(t *testing.T) // after stop, with what was published last
}

// limitFile is a rule file that can be told by its count.
func limitFile(count int) string {
	return fmt.Sprintf("domain: shop\ndescriptors: [{key: user, limit: %d/1h}]\n", count)
}

func countOf(set *rules.Set) int64 { return set.Rules()[0].Limit.Count }

// patience is far longer than anything takes in a test that passes.
const patience = time.Minute

func openSource(t *testing.T, url, credentials, keep string) rules.Provider {
	t.Helper()
	source, err := rulesource.Open(url, &rulesource.Options{
		Poll: 50 * time.Millisecond, Keep: keep, OnKeepError: func(err error) { t.Error(err) },
		Credentials: func() (string, error) { return credentials, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func load(t *testing.T, source rules.Provider) *rules.Set {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	set, err := source.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A watcher has what was loaded.
type watcher struct {
	t     *testing.T
	loads chan result
}

type result struct {
	set *rules.Set
	err error
}

func watch(t *testing.T, source rules.Provider) *watcher {
	t.Helper()
	w := &watcher{t, make(chan result, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Watch(ctx, func(set *rules.Set, err error) error {
			w.loads <- result{set, err}
			return err
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watcher) next() result {
	w.t.Helper()
	select {
	case r := <-w.loads:
		return r
	case <-time.After(patience):
		w.t.Fatalf("nothing loaded within %v", patience)
		return result{}
	}
}

func (w *watcher) wantCount(count int64) {
	w.t.Helper()
	if r := w.next(); r.err != nil || countOf(r.set) != count {
		w.t.Fatalf("loaded %v, %v, want rules with %d", r.set, r.err, count)
	}
}

// wantBadRules returns the error of rules that are wrong.
func (w *watcher) wantBadRules() {
	w.t.Helper()
	var bad rules.Errors
	if r := w.next(); !errors.As(r.err, &bad) || bad[0].Line == 0 || r.set != nil {
		w.t.Fatalf("loaded %v, %v, want errors of a file", r.set, r.err)
	}
}

// wantFailure wants an error of the server, without a secret.
func (w *watcher) wantFailure(secrets ...string) {
	w.t.Helper()
	r := w.next()
	if r.err == nil || errors.As(r.err, new(rules.Errors)) {
		w.t.Fatalf("loaded %v, %v, want a failure", r.set, r.err)
	}
	for _, s := range append(secrets, "?") { // nor a query, which may have a token
		if s != "" && strings.Contains(r.err.Error(), s) {
			w.t.Errorf("error %q contains %q", r.err, s)
		}
	}
}

// testCentre publishes versions, good and bad, and stops the server.
func testCentre(t *testing.T, c centre) {
	_, password, _ := strings.Cut(c.credentials(), ":")
	c.set(t, limitFile(1))
	keep := filepath.Join(t.TempDir(), "kept")
	source := openSource(t, c.url(), c.credentials(), keep)
	if n := countOf(load(t, source)); n != 1 {
		t.Fatalf("loaded rules with %d, want 1", n)
	}
	if name := source.String(); !strings.HasPrefix(c.url(), name) || strings.Contains(name, "?") {
		t.Errorf("the source is called %q, want %q without its query", name, c.url())
	}
	w := watch(t, source)
	c.set(t, limitFile(2))
	w.wantCount(2)
	c.set(t, "domain: shop\ndescriptors: [{key: user, limit: nonsense}]\n")
	w.wantBadRules()
	if n := countOf(load(t, openSource(t, c.url(), c.credentials(), keep))); n != 2 {
		t.Errorf("started while the version is bad: rules with %d, want those that were kept, 2", n)
	}
	c.set(t, limitFile(2))
	w.wantCount(2)
	c.stop(t)
	w.wantFailure(password)
	late := openSource(t, c.url(), c.credentials(), keep)
	if n := countOf(load(t, late)); n != 2 {
		t.Errorf("started without the server: rules with %d, want 2", n)
	}
	if _, err := openSource(t, strings.Replace(c.url(), "rules", "other", 1), c.credentials(), keep).Load(t.Context()); err == nil {
		t.Error("rules of another key were restored")
	}
	w2 := watch(t, late)
	w2.wantFailure(password)
	c.start(t)
	w.wantCount(2)
	w2.wantCount(2)
	c.set(t, limitFile(3))
	w.wantCount(3)
	w2.wantCount(3)
	late.(interface{ Reload() }).Reload()
	w2.wantCount(3)
	w.wantNothing()
}

// wantNothing fails if rules that are in use are loaded again.
func (w *watcher) wantNothing() {
	w.t.Helper()
	select {
	case r := <-w.loads:
		w.t.Errorf("loaded %v, %v again", r.set, r.err)
	case <-time.After(300 * time.Millisecond):
	}
}
