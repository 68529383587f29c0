package recording_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/recording"
	"github.com/penstock-io/penstock/server/replay"
)

const twoRules = `domain: shop
descriptors:
  - key: user
    limit: 3/1m
  - key: path
    value: /login
    descriptors: [{key: remote_address, limit: 2/1h fixed-window}]
`

func load(t *testing.T) *rules.Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(twoRules), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := rules.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func open(t *testing.T, o recording.Options) *recording.Recorder {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	r, err := recording.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func take(entries ...rules.Entry) engine.Descriptor {
	return engine.Descriptor{Entries: entries, Cost: 1}
}

func replayed(t *testing.T, dir string) *replay.Report {
	t.Helper()
	report, err := replay.Run(context.Background(), []string{dir}, replay.Options{Rules: load(t)})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// decide has an engine decide, and record, requests of users and addresses from several goroutines.
func decide(t *testing.T, r *recording.Recorder, requests int) (denied int) {
	t.Helper()
	set := load(t)
	var e *engine.Engine
	e = engine.New(penstock.NewMemory(nil), &engine.Options{OnDecided: func(domain string, ds []engine.Descriptor, denied bool) {
		r.Record(e.Rules(), domain, ds, denied)
	}})
	e.SetRules(set)
	var result engine.Result
	for i := range requests {
		user, address := fmt.Sprintf("zoë|%d\t%%\n", i%7), fmt.Sprintf("10.0.0.%d", i%20)
		ds := []engine.Descriptor{
			take(rules.Entry{Key: "user", Value: user}),
			take(rules.Entry{Key: "path", Value: "/login"}, rules.Entry{Key: "remote_address", Value: address}),
		}
		if i%5 == 0 {
			ds[0].Cost = -1
			ds = ds[:1]
		}
		if err := e.Decide(context.Background(), "shop", ds, &result); err != nil {
			t.Fatal(err)
		}
		if result.OverLimit {
			denied++
		}
	}
	return denied
}

// A recording is replayed as it was decided, whatever values contain.
func TestRecordingIsReplayedExactly(t *testing.T) {
	dir := t.TempDir()
	r := open(t, recording.Options{Dir: dir})
	denied := decide(t, r, 500)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	got := replayed(t, dir)
	if c := got.Recorded; got.Requests != 500 || c.Denied != int64(denied) || denied == 0 || c.NewlyDenied+c.NewlyAllow != 0 {
		t.Errorf("%d of 500 were denied, and the replay has %d requests, %+v", denied, got.Requests, c)
	}
	if r.Recorded.Load() != 500 || r.Dropped.Load() != 0 {
		t.Errorf("recorded %d, dropped %d; want 500 and 0", r.Recorded.Load(), r.Dropped.Load())
	}
}

// Long lines fill the queue long before the next interval: the writer does not wait for it.
func TestRecorderWritesAHalfFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, recording.Options{Dir: t.TempDir()})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		ds := []engine.Descriptor{take(rules.Entry{Key: "path", Value: strings.Repeat("x", 1000)})}
		for i := range 20_000 { // at one time
			if r.Record(nil, "shop", ds, false); i%1000 == 0 {
				synctest.Wait()
			}
		}
		cancel()
		running.Wait()
		if err := r.Close(); err != nil || r.Recorded.Load() != 20_000 || r.Dropped.Load() != 0 {
			t.Errorf("recorded %d, dropped %d, %v; want 20,000 and 0", r.Recorded.Load(), r.Dropped.Load(), err)
		}
	})
}

// Hashed values are not in the files, and a key stays one key, also after a restart.
func TestRecorderHashesValues(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		r := open(t, recording.Options{Dir: dir, Hash: []string{"user", "remote_address"}})
		decide(t, r, 100)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text := contents(t, dir)
	if strings.Contains(text, "zo") || strings.Contains(text, "10.0.0.") || !strings.Contains(text, "path=/login|remote_address=h-") {
		t.Errorf("got %.300s", text)
	}
	if got := replayed(t, dir); got.Rules[0].Keys != 7 || got.Rules[1].Keys != 20-4 {
		t.Errorf("got %d and %d keys, want 7 and 16", got.Rules[0].Keys, got.Rules[1].Keys)
	}
}

func contents(t *testing.T, dir string) (text string) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*"+recording.Suffix))
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	return text
}

// A key is in the sample with all its requests, or with none, whatever else a request has.
func TestRecorderSamplesWholeKeys(t *testing.T) {
	dir, set := t.TempDir(), load(t)
	r := open(t, recording.Options{Dir: dir, Sample: 0.25})
	for i := range 4000 {
		r.Record(set, "shop", []engine.Descriptor{
			take(rules.Entry{Key: "user", Value: fmt.Sprint(i % 400)}),
			take(rules.Entry{Key: "path", Value: "/login"}, rules.Entry{Key: "remote_address", Value: fmt.Sprint(i % 500)}),
		}, false)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(contents(t, dir)), "\n")[1:] {
		var record recording.Record
		if err := record.Parse([]byte(line)); err != nil {
			t.Fatal(err)
		}
		for _, d := range record.Descriptors {
			counts[string(rules.AppendKey(nil, d.Entries))]++
		}
	}
	for key, n := range counts {
		if want := map[bool]int{true: 10, false: 8}[strings.HasPrefix(key, "user")]; n != want {
			t.Errorf("%s has %d of its %d requests", key, n, want)
		}
	}
	if len(counts) < 100 || len(counts) > 400 {
		t.Errorf("%d of 900 keys are recorded, want about 225", len(counts))
	}
}

// The files never have more bytes than allowed, and the newest requests are the ones that are kept.
func TestRecorderRotates(t *testing.T) {
	dir, set := t.TempDir(), load(t)
	r := open(t, recording.Options{Dir: dir, MaxBytes: 1 << 20})
	const requests = 100_000
	for i := range requests {
		r.Record(set, "shop", []engine.Descriptor{take(rules.Entry{Key: "user", Value: fmt.Sprint(i)})}, false)
		if i%1000 != 999 {
			continue
		}
		if i%10_000 == 9999 { // another process goes on
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = open(t, recording.Options{Dir: dir, MaxBytes: 1 << 20})
		}
		if text := contents(t, dir); len(text) > 1<<20 {
			t.Fatalf("after %d requests the files have %d bytes", i+1, len(text))
		}
	}
	text := contents(t, dir)
	if !strings.HasSuffix(text, fmt.Sprintf("user=%d\n# penstock recording 1\n", requests-1)) || len(text) < 1<<19 {
		t.Errorf("%d bytes, which end in %q", len(text), text[max(len(text)-100, 0):])
	}
}

// When nothing is written, recording neither blocks nor takes more memory: requests are dropped and counted.
func TestRecorderDropsWhatCannotBeWritten(t *testing.T) {
	dir, set := t.TempDir(), load(t)
	r := open(t, recording.Options{Dir: dir})
	var working sync.WaitGroup
	const each = 50_000
	for range 4 {
		working.Go(func() {
			for range each {
				r.Record(set, "shop", []engine.Descriptor{take(rules.Entry{Key: "user", Value: "42"})}, false)
			}
		})
	}
	working.Wait()
	if r.Dropped.Load() == 0 {
		t.Error("nothing was dropped")
	}
	r.Record(set, "shop", []engine.Descriptor{take(rules.Entry{Key: "user", Value: strings.Repeat("x", 1<<20)})}, false)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.Recorded.Load() + r.Dropped.Load(); got != 4*each+1 {
		t.Errorf("recorded and dropped %d, want %d", got, 4*each+1)
	}
	if got := replayed(t, dir); uint64(got.Requests) != r.Recorded.Load() {
		t.Errorf("replayed %d, want %d", got.Requests, r.Recorded.Load())
	}
}

// A directory that vanishes, as a full disk, is a counted loss, and not the end.
func TestRecorderSurvivesAFailingDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	r := open(t, recording.Options{Dir: dir, MaxBytes: 1 << 20})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(done)
	}()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for r.Dropped.Load() == 0 && time.Now().Before(deadline) { // the first file is still open
		r.Record(nil, "shop", []engine.Descriptor{take(rules.Entry{Key: "user", Value: strings.Repeat("x", 1000)})}, false)
	}
	stop()
	<-done
	if r.Dropped.Load() == 0 {
		t.Error("nothing was dropped")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1767225600123456789\tallowed\tshop\t1\tuser=42\t-1\tpath=/login|remote_address=203.0.113.9")
	f.Add("1767225600123456789\tdenied\t%\t\t")
	f.Fuzz(func(_ *testing.T, line string) {
		var r recording.Record
		_ = r.Parse([]byte(line)) // it must not panic
	})
}
