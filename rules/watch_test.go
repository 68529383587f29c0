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

	"github.com/penstock-io/penstock/rules"
)

// ruleFile returns a file with one rule of n requests per second.
func ruleFile(domain string, n int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: %d}\n", domain, n)
}

// limitOf returns the requests per second of a domain's rule, or -1.
func limitOf(set *rules.Set, domain string) int {
	if set == nil {
		return -1
	}
	r, _ := set.Domain(domain).Match([]rules.Entry{{Key: "k"}}, nil)
	if r == nil {
		return -1
	}
	return int(r.RequestsPerUnit)
}

// A testDir is a directory of rule files that a test changes.
type testDir struct {
	t    *testing.T
	path string
}

func newTestDir(t *testing.T) testDir { return testDir{t, t.TempDir()} }

func (f testDir) join(name string) string { return filepath.Join(f.path, name) }

func (f testDir) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f testDir) write(name, text string) {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.join(name)), 0o755))
	f.must(os.WriteFile(f.join(name), []byte(text), 0o644))
}

func (f testDir) link(target, name string) { f.t.Helper(); f.must(os.Symlink(target, f.join(name))) }

func (f testDir) rename(from, to string) { f.t.Helper(); f.must(os.Rename(f.join(from), f.join(to))) }

func (f testDir) remove(name string) { f.t.Helper(); f.must(os.RemoveAll(f.join(name))) }

// A watchFixture watches a source and collects what Watch loads.
type watchFixture struct {
	t      *testing.T
	source *rules.Source
	loads  chan load
	stop   func()
}

type load struct {
	set *rules.Set
	err error
}

// watch loads the rules at a path and watches them.
func watch(t *testing.T, path string, poll time.Duration) *watchFixture {
	t.Helper()
	return watchWith(t, path, &rules.Options{StableTime: 5 * time.Millisecond, Look: 5 * time.Millisecond, Poll: poll})
}

func watchWith(t *testing.T, path string, o *rules.Options) *watchFixture {
	t.Helper()
	w := &watchFixture{t: t, source: rules.NewSource(path, o), loads: make(chan load, 1000)}
	if _, err := w.source.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.source.Watch(ctx, func(set *rules.Set, err error) error {
			if (set == nil) == (err == nil) {
				t.Errorf("loaded %v with the error %v, want one of them", set, err)
			}
			w.loads <- load{set, err}
			return err
		})
	}()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

// next returns the next load.
func (w *watchFixture) next() load {
	w.t.Helper()
	select {
	case l := <-w.loads:
		return l
	case <-time.After(time.Minute):
		w.t.Fatal("nothing was loaded within a minute")
		return load{}
	}
}

// until waits for rules with n requests per second in a domain. Earlier loads may be
// of half a change.
func (w *watchFixture) until(domain string, n int) {
	w.t.Helper()
	for {
		l := w.next()
		if l.err == nil && limitOf(l.set, domain) == n {
			return
		}
	}
}

// untilError waits for an error that contains text.
func (w *watchFixture) untilError(text string) {
	w.t.Helper()
	for {
		l := w.next()
		if l.err == nil {
			continue
		}
		if strings.Contains(l.err.Error(), text) {
			return
		}
		w.t.Logf("ignoring the error %v", l.err)
	}
}

const never = 24 * time.Hour

func TestWatchFileWrittenInPlace(t *testing.T) {
	f := newTestDir(t)
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

// Editors write a new file and rename it; some rename the old one to a backup first.
func TestWatchFileReplacedByRename(t *testing.T) {
	f := newTestDir(t)
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
			f.rename("api.yaml", "api.yaml~") // the backup stays
			f.write("api.yaml", ruleFile("api", n))
			w.until("api", n)
		}
		f.remove("api.yaml~")
		w.stop()
	}
}

// mount arranges files as Kubernetes does: each is a link into a hidden directory,
// which is itself a link that is replaced when the files change.
func (f testDir) mount(version int, files ...string) {
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

func TestWatchKubernetesSymlinkSwap(t *testing.T) {
	f := newTestDir(t)
	f.mount(1, "api.yaml", "web.yaml", "more/sub.yaml")
	elsewhere := newTestDir(t)
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
	set, err := rules.Load(f.path, nil)
	if err != nil || len(set.Rules()) != 3 || limitOf(set, "web") != version || limitOf(set, "sub") != version {
		t.Errorf("loaded %v with the error %v, want three rules of version %d, each once", set, err, version)
	}
}

// Envoy's service is deployed with a link to the current directory.
func TestWatchParentSymlinkSwap(t *testing.T) {
	f := newTestDir(t)
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

func TestWatchFilesAddedAndRemoved(t *testing.T) {
	f := newTestDir(t)
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

func TestWatchDirectoryRecreated(t *testing.T) {
	f := newTestDir(t)
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
	w.untilError("no rule files in this directory")
	f.write("etc/rules/api.yaml", ruleFile("api", 5))
	w.until("api", 5)
}

func TestWatchReportsBadFileUntilFixed(t *testing.T) {
	f := newTestDir(t)
	f.write("api.yaml", ruleFile("api", 1))
	f.write("web.yaml", ruleFile("web", 1))
	w := watch(t, f.path, never)
	f.write("web.yaml", ruleFile("web", 2)+"  nonsense: true\n")
	w.untilError(f.join("web.yaml") + ":5: unknown key 'nonsense'")
	f.write("api.yaml", ruleFile("api", 3))
	w.untilError(f.join("web.yaml") + ":5: unknown key 'nonsense'")
	f.write("web.yaml", ruleFile("web", 3))
	w.until("web", 3)
	f.must(os.Truncate(f.join("web.yaml"), int64(len(ruleFile("web", 3))-3)))
	w.untilError(f.join("web.yaml") + ":4: yaml: did not find expected node content")
	f.write("web.yaml", ruleFile("web", 4))
	w.until("web", 4)
}

// Each version of the files is loaded once, however often they are read.
func TestWatchLoadsEachVersionOnce(t *testing.T) {
	f := newTestDir(t)
	f.write("api.yaml", ruleFile("api", 1))
	w := watch(t, f.path, time.Millisecond)
	for n := 2; n < 20; n++ {
		f.write(".hidden", ruleFile("api", n))
		f.rename(".hidden", "api.yaml")
		if l := w.next(); l.err != nil || limitOf(l.set, "api") != n {
			t.Fatalf("loaded %+v, want version %d", l, n)
		}
		<-time.After(10 * time.Millisecond) // enough to read it several times
	}
}

// Reload loads the files even if they have not changed.
func TestWatchReloadLoadsUnchangedFiles(t *testing.T) {
	f := newTestDir(t)
	f.write("api.yaml", ruleFile("api", 1))
	w := watch(t, f.path, never)
	w.source.Reload()
	if l := w.next(); l.err != nil || limitOf(l.set, "api") != 1 {
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

// A change between Load and Watch is not missed.
func TestWatchFindsChangeBeforeStart(t *testing.T) {
	f := newTestDir(t)
	f.write("api.yaml", ruleFile("api", 1))
	source := rules.NewSource(f.path, &rules.Options{StableTime: time.Millisecond})
	if _, err := source.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.write("api.yaml", ruleFile("api", 2))
	ctx, cancel := context.WithCancel(t.Context())
	source.Watch(ctx, func(set *rules.Set, err error) error {
		if err != nil || limitOf(set, "api") != 2 {
			t.Errorf("loaded %v with the error %v, want the second version", set, err)
		}
		cancel()
		return err
	})
}

func TestLoadMergesDomains(t *testing.T) {
	f := newTestDir(t)
	f.write("a.yaml", ruleFile("api", 1))
	f.write("b.yaml", "domain: api\ncompat: envoy\ndescriptors:\n- {key: other, limit: 2/s}\n")
	if _, err := rules.Load(f.path, nil); err == nil || !strings.HasPrefix(err.Error(), f.join("b.yaml")+":1: duplicate domain 'api' in config file, first defined in "+f.join("a.yaml")+":1: ") {
		t.Errorf("got %v, want an error about the second file", err)
	}
	merge := &rules.Options{MergeDomains: true}
	set, err := rules.Load(f.path, merge)
	if err != nil || len(set.Rules()) != 2 || len(set.Domains()) != 1 || !set.Domain("api").CompatEnvoy {
		t.Fatalf("got %+v with the error %v, want two rules of one domain", set, err)
	}
	f.write("c.yaml", "domain: api\ndescriptors:\n- key: k\n")
	want := f.join("c.yaml") + ":3: duplicate descriptor composite key 'api.k', first in " + f.join("a.yaml") + ":3" + twoLimits
	if _, err := rules.Load(f.path, merge); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Real files are written in place in two pieces. The writer measures its pauses, because
// one that takes longer than the stable time on a busy machine allows half a file.
func TestWatchNeverLoadsHalfOfRealFile(t *testing.T) {
	const versions, stable = 15, 250 * time.Millisecond
	half := func(n int) string { return ruleFile("api", n) }
	whole := func(n int) string { return half(n) + "- {key: last, limit: 1/s}\n" }
	f := newTestDir(t)
	f.write("api.yaml", whole(0))
	o := &rules.Options{StableTime: stable, Look: time.Millisecond, Poll: 20 * time.Millisecond}
	w := watchWith(t, f.path, o)
	longPause := map[int]bool{}
	for n := 1; n <= versions; n++ {
		begun := time.Now()
		f.write("api.yaml", half(n))
		w.source.Reload()
		<-time.After(rand.N(stable / 2))
		f.write("api.yaml", whole(n))
		longPause[n] = time.Since(begun) >= stable
		w.source.Reload()
		<-time.After(rand.N(stable / 2))
	}
	for loaded := 0; loaded != versions; {
		set := w.nextGood()
		loaded = limitOf(set, "api")
		if len(set.Rules()) == 2 {
			continue
		}
		if !longPause[loaded] {
			t.Errorf("half of version %d was loaded", loaded)
		}
		if loaded == versions {
			loaded = 0 // its other half follows
		}
	}
}

// A link is replaced while the files are read, and rules are matched at the same time:
// every set that is loaded has one version of all files.
func TestWatchLoadsOneVersionOfAllFiles(t *testing.T) {
	f := newTestDir(t)
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
	rounds := 100
	if testing.Short() {
		rounds = 30
	}
	for n := range rounds {
		begun := time.Now()
		w.reload()
		w.source.Reload()
		f.link(fmt.Sprintf("..%d", (n+1)%2), "..tmp")
		<-time.After(rand.N(time.Since(begun))) // any moment during the read
		f.rename("..tmp", "..data")
		for limitOf(current.Load(), "f0") != (n+1)%2 {
			set := w.nextGood()
			checkVersion(t, set, files)
			current.Store(set)
		}
	}
	cancel()
	matching.Wait()
}

// reload calls Reload and returns the set that is loaded.
func (w *watchFixture) reload() *rules.Set {
	w.t.Helper()
	w.source.Reload()
	return w.nextGood()
}

// nextGood returns the next set, ignoring errors.
func (w *watchFixture) nextGood() *rules.Set {
	w.t.Helper()
	for {
		if l := w.next(); l.err == nil {
			return l.set
		}
	}
}

// checkVersion checks that all files have the version of the first.
func checkVersion(t *testing.T, set *rules.Set, files []string) {
	t.Helper()
	version := limitOf(set, "f0")
	for _, name := range files {
		if got := limitOf(set, strings.TrimSuffix(name, ".yaml")); got != version {
			t.Errorf("version %d of %s beside version %d", got, name, version)
			return
		}
	}
}

func TestWatchReleasesGoroutinesAndFiles(t *testing.T) {
	f := newTestDir(t)
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
			t.Fatalf("%d goroutines and %d open files, want at most %d and %d as before",
				runtime.NumGoroutine(), openFiles(t), goroutines, files)
		case <-time.After(time.Millisecond):
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // no /proc on this system
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
