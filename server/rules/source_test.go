package rules_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server/rules"
)

// ruleFile returns a file with one rule, which says n.
func ruleFile(domain string, n int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: %d}\n", domain, n)
}

// said returns what the rule of a domain says, or -1.
func said(set *rules.Set, domain string) int {
	if set == nil {
		return -1
	}
	r, _ := set.Domain(domain).Match([]rules.Entry{{Key: "k"}}, nil)
	if r == nil {
		return -1
	}
	return int(r.RequestsPerUnit)
}

// A folder is one that a test writes to.
type folder struct {
	t    *testing.T
	path string
}

func newFolder(t *testing.T) folder { return folder{t, t.TempDir()} }

func (f folder) join(name string) string { return filepath.Join(f.path, name) }

func (f folder) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) write(name, text string) {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.join(name)), 0o755))
	f.must(os.WriteFile(f.join(name), []byte(text), 0o644))
}

func (f folder) link(target, name string) { f.t.Helper(); f.must(os.Symlink(target, f.join(name))) }

func (f folder) rename(from, to string) { f.t.Helper(); f.must(os.Rename(f.join(from), f.join(to))) }

func (f folder) remove(name string) { f.t.Helper(); f.must(os.RemoveAll(f.join(name))) }

// A watching is a source being watched, and what has come of it.
type watching struct {
	t      *testing.T
	source *rules.Source
	loads  chan load
	stop   func()
}

type load struct {
	set *rules.Set
	err error
}

// watch loads the rules at a path and watches them. Polling is for one test.
func watch(t *testing.T, path string, poll time.Duration) *watching {
	t.Helper()
	w := &watching{t: t, source: rules.NewSource(path, &rules.Options{Debounce: 5 * time.Millisecond, Poll: poll}), loads: make(chan load, 1000)}
	if _, err := w.source.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.source.Watch(ctx, func(set *rules.Set, err error) {
			if (set == nil) == (err == nil) {
				t.Errorf("loaded %v with the error %v, want one of them", set, err)
			}
			w.loads <- load{set, err}
		})
	}()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

// next returns the next load.
func (w *watching) next() load {
	w.t.Helper()
	select {
	case l := <-w.loads:
		return l
	case <-time.After(time.Minute):
		w.t.Fatal("nothing was loaded")
		return load{}
	}
}

// until waits for rules of which the domain says n. What comes before may be
// anything: half of a change, perhaps.
func (w *watching) until(domain string, n int) {
	w.t.Helper()
	for {
		l := w.next()
		if l.err == nil && said(l.set, domain) == n {
			return
		}
	}
}

// untilError waits for an error that says something.
func (w *watching) untilError(text string) {
	w.t.Helper()
	for {
		l := w.next()
		if l.err == nil {
			continue
		}
		if strings.Contains(l.err.Error(), text) {
			return
		}
		w.t.Logf("passing over the error %v", l.err)
	}
}

const never = 24 * time.Hour

func TestAFileIsWrittenInPlace(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	for _, path := range []string{f.path, f.join("api.yaml")} {
		f.write("api.yaml", ruleFile("api", 1))
		w := watch(t, path, never)
		for n := 2; n < 5; n++ {
			f.write("api.yaml", ruleFile("api", n))
			w.until("api", n)
		}
		w.stop()
	}
}

// Editors write another file and rename it, some after renaming the old one.
func TestAFileIsReplacedByAnEditor(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	for _, path := range []string{f.path, f.join("api.yaml")} {
		f.write("api.yaml", ruleFile("api", 1))
		w := watch(t, path, never)
		for n := 2; n < 5; n++ {
			f.write(".api.yaml.tmp", ruleFile("api", n))
			f.rename(".api.yaml.tmp", "api.yaml")
			w.until("api", n)
		}
		for n := 5; n < 8; n++ {
			f.rename("api.yaml", "api.yaml~") // and left there
			f.write("api.yaml", ruleFile("api", n))
			w.until("api", n)
		}
		f.remove("api.yaml~")
		w.stop()
	}
}

// mount lays files out as Kubernetes does: a link for each into a hidden folder,
// which is itself a link that is changed when the files do.
func (f folder) mount(version int, files ...string) {
	f.t.Helper()
	hidden := fmt.Sprintf("..2024_%d", version)
	old, _ := os.Readlink(f.join("..data"))
	for _, name := range files {
		domain := strings.TrimSuffix(filepath.Base(name), ".yaml")
		f.write(filepath.Join(hidden, name), ruleFile(domain, version))
		top, _, _ := strings.Cut(name, "/")
		if err := os.Symlink("..data/"+top, f.join(top)); err != nil && !errors.Is(err, fs.ErrExist) {
			f.t.Fatal(err)
		}
	}
	f.link(hidden, "..data_tmp")
	f.rename("..data_tmp", "..data")
	if old != "" {
		f.remove(old)
	}
}

func TestKubernetesSwapsALink(t *testing.T) {
	f := newFolder(t)
	f.mount(1, "api.yaml", "web.yaml", "more/sub.yaml")
	elsewhere := newFolder(t)
	elsewhere.link(f.path, "mounted")
	version := 1
	for _, path := range []string{f.path, f.join("api.yaml"), elsewhere.join("mounted"), elsewhere.join("mounted/api.yaml")} {
		w := watch(t, path, never)
		for range 3 {
			version++
			f.mount(version, "api.yaml", "web.yaml", "more/sub.yaml")
			w.until("api", version)
		}
		w.stop()
	}
	set, err := rules.Load(f.path)
	if err != nil || len(set.Rules()) != 3 || said(set, "web") != version || said(set, "sub") != version {
		t.Errorf("loaded %v with the error %v, want three rules of version %d, each once", set, err, version)
	}
}

// Envoy's service is deployed by a link to the current folder.
func TestALinkOnTheWayIsSwapped(t *testing.T) {
	f := newFolder(t)
	for n := 1; n <= 4; n++ {
		f.write(fmt.Sprintf("release%d/config/api.yaml", n), ruleFile("api", n))
	}
	f.link("release1", "current")
	w := watch(t, f.join("current/config"), never)
	for n := 2; n <= 4; n++ {
		f.link(fmt.Sprintf("release%d", n), "next")
		f.rename("next", "current")
		w.until("api", n)
	}
	f.write("release4/config/api.yaml", ruleFile("api", 5))
	w.until("api", 5)
}

func TestFilesComeAndGo(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	w := watch(t, f.path, never)
	f.write("web.yaml", ruleFile("web", 2))
	w.until("web", 2)
	f.write("deep/down/far.yaml", ruleFile("far", 3))
	w.until("far", 3)
	f.write("deep/down/far.yaml", ruleFile("far", 4))
	w.until("far", 4)
	f.remove("web.yaml")
	w.until("web", -1)
	f.rename("deep", "elsewhere")
	f.write("elsewhere/down/far.yaml", ruleFile("far", 5))
	w.until("far", 5)
	f.remove("elsewhere")
	w.until("far", -1)
}

func TestAFolderIsRemovedAndMadeAgain(t *testing.T) {
	f := newFolder(t)
	f.write("etc/rules/api.yaml", ruleFile("api", 1))
	w := watch(t, f.join("etc/rules"), never)
	for n := 2; n < 5; n++ {
		f.remove("etc")
		w.untilError("no such file or directory")
		f.write("etc/rules/api.yaml", ruleFile("api", n))
		w.until("api", n)
	}
	f.rename("etc", "old")
	w.untilError("no such file or directory")
	f.rename("old", "etc")
	w.until("api", 4)
	f.remove("etc/rules/api.yaml")
	w.untilError("no rule files in this folder")
	f.write("etc/rules/api.yaml", ruleFile("api", 5))
	w.until("api", 5)
}

func TestABadFileIsReportedAndMended(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	f.write("web.yaml", ruleFile("web", 1))
	w := watch(t, f.path, never)
	f.write("web.yaml", ruleFile("web", 2)+"  nonsense: true\n")
	w.untilError(f.join("web.yaml") + ":5: config error, unknown key 'nonsense'")
	f.write("api.yaml", ruleFile("api", 3))
	w.untilError(f.join("web.yaml") + ":5: config error, unknown key 'nonsense'")
	f.write("web.yaml", ruleFile("web", 3))
	w.until("web", 3)
	f.must(os.Truncate(f.join("web.yaml"), int64(len(ruleFile("web", 3))-3)))
	w.untilError(f.join("web.yaml") + ":4: error loading config file: yaml: line 4: did not find expected node content")
	f.write("web.yaml", ruleFile("web", 4))
	w.until("web", 4)
}

// However often the files are read, each version of them is loaded once.
func TestEachVersionIsLoadedOnce(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	w := watch(t, f.path, time.Millisecond)
	for n := 2; n < 20; n++ {
		f.write(".hidden", ruleFile("api", n))
		f.rename(".hidden", "api.yaml")
		if l := w.next(); l.err != nil || said(l.set, "api") != n {
			t.Fatalf("loaded %+v, want version %d", l, n)
		}
		<-time.After(10 * time.Millisecond) // time enough to read it several times
	}
}

// What was loaded last is loaded again if that is asked for.
func TestReload(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	w := watch(t, f.path, never)
	w.source.Reload()
	if l := w.next(); l.err != nil || said(l.set, "api") != 1 {
		t.Fatalf("loaded %+v, want the same rules again", l)
	}
	f.write(".hidden", "nonsense")
	f.rename(".hidden", "api.yaml")
	if l := w.next(); l.err == nil {
		t.Fatalf("loaded %+v, want an error", l)
	}
	w.source.Reload()
	if l := w.next(); l.err == nil {
		t.Fatalf("loaded %+v, want the error again", l)
	}
}

// A change in the moment between loading and watching is not missed.
func TestAChangeBeforeWatching(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	source := rules.NewSource(f.path, nil)
	if _, err := source.Load(); err != nil {
		t.Fatal(err)
	}
	f.write("api.yaml", ruleFile("api", 2))
	ctx, cancel := context.WithCancel(t.Context())
	source.Watch(ctx, func(set *rules.Set, err error) {
		if err != nil || said(set, "api") != 2 {
			t.Errorf("loaded %v with the error %v, want the second version", set, err)
		}
		cancel()
	})
}

func TestMergingDomains(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", ruleFile("api", 1))
	f.write("b.yaml", "domain: api\ncompat: envoy\ndescriptors:\n- {key: other, limit: 2/s}\n")
	if _, err := rules.Load(f.path); err == nil || err.Error() != f.join("b.yaml")+":1: duplicate domain 'api' in config file" {
		t.Errorf("got %v, want the second file refused", err)
	}
	merging := rules.NewSource(f.path, &rules.Options{MergeDomains: true})
	set, err := merging.Load()
	if err != nil || len(set.Rules()) != 2 || len(set.Domains()) != 1 || !set.Domain("api").CompatEnvoy {
		t.Fatalf("got %+v with the error %v, want two rules of one domain", set, err)
	}
	f.write("c.yaml", "domain: api\ndescriptors:\n- key: k\n")
	want := f.join("c.yaml") + ":3: duplicate descriptor composite key 'api.k'"
	if _, err := merging.Load(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Rules are matched while a link is changed in the midst of reading them, and every
// match is by one version of all files.
func TestReloadsAreAtomic(t *testing.T) {
	f := newFolder(t)
	files := make([]string, 40)
	for i := range files {
		files[i] = fmt.Sprintf("f%d.yaml", i)
		for version := range 2 {
			f.write(fmt.Sprintf("..%d/%s", version, files[i]), ruleFile(fmt.Sprintf("f%d", i), version))
		}
		f.link("..data/"+files[i], files[i])
	}
	f.link("..0", "..data")
	w := watch(t, f.path, never)
	var current atomic.Pointer[rules.Set]
	current.Store(w.reload())
	ctx, cancel := context.WithCancel(t.Context())
	var matching sync.WaitGroup
	matching.Go(func() {
		for ctx.Err() == nil {
			checkVersion(t, current.Load(), files)
			<-time.After(100 * time.Microsecond)
		}
	})
	for n := range 100 {
		begun := time.Now()
		w.reload()
		w.source.Reload()
		f.link(fmt.Sprintf("..%d", (n+1)%2), "..tmp")
		<-time.After(rand.N(time.Since(begun))) // any moment of the reading
		f.rename("..tmp", "..data")
		for said(current.Load(), "f0") != (n+1)%2 {
			set := w.nextGood()
			checkVersion(t, set, files)
			current.Store(set)
		}
	}
	cancel()
	matching.Wait()
}

// reload returns the set that is loaded when that is asked for.
func (w *watching) reload() *rules.Set {
	w.t.Helper()
	w.source.Reload()
	return w.nextGood()
}

// nextGood returns the next set, passing over errors.
func (w *watching) nextGood() *rules.Set {
	w.t.Helper()
	for {
		if l := w.next(); l.err == nil {
			return l.set
		}
	}
}

// checkVersion checks that all files are of the version that the first is of.
func checkVersion(t *testing.T, set *rules.Set, files []string) {
	t.Helper()
	version := said(set, "f0")
	for _, name := range files {
		if got := said(set, strings.TrimSuffix(name, ".yaml")); got != version {
			t.Errorf("version %d of %s beside version %d", got, name, version)
			return
		}
	}
}

func TestWatchingLeavesNothingBehind(t *testing.T) {
	f := newFolder(t)
	f.write("api.yaml", ruleFile("api", 1))
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for n := range 30 {
		w := watch(t, f.path, never)
		f.write("api.yaml", ruleFile("api", n+2))
		w.until("api", n+2)
		w.stop()
	}
	deadline := time.After(time.Minute)
	for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
		select {
		case <-deadline:
			t.Fatalf("%d goroutines and %d files, where there were %d and %d",
				runtime.NumGoroutine(), openFiles(t), goroutines, files)
		case <-time.After(time.Millisecond):
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // not on this system
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
