package rules

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A virtualFile is a rule file on the clock of a synctest bubble.
type virtualFile struct {
	mu       sync.Mutex
	text     string
	changed  time.Time
	writes   int
	hidden   bool // whether only reading the file shows a change
	lastRead [sha256.Size]byte
}

const virtualPath = "/rules.yaml"

// source returns a source that reads the file.
func (f *virtualFile) source(noticed bool) *Source {
	f.hidden = !noticed
	s := NewSource(virtualPath, nil)
	s.read = func(string) *reading { return f.read() }
	s.look = func(string) [sha256.Size]byte { return f.look() }
	return s
}

func (f *virtualFile) read() *reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &reading{sealed: true, begun: time.Now(), ended: time.Now()}
	r.add(File{Name: virtualPath, Text: []byte(f.text)}, f.changed)
	f.lastRead = f.identity()
	r.identify(f.lastRead)
	return r
}

func (f *virtualFile) look() [sha256.Size]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hidden {
		return f.lastRead
	}
	return f.identity()
}

func (f *virtualFile) identity() [sha256.Size]byte {
	return sha256.Sum256([]byte(fmt.Sprint(f.writes)))
}

func (f *virtualFile) write(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text, f.changed = text, time.Now()
	f.writes++
}

// writeInPieces writes lines in place with pauses between them.
func (f *virtualFile) writeInPieces(text string, pause time.Duration) {
	for i := range len(text) {
		if text[i] == '\n' && rand.N(4) == 0 {
			f.write(text[:i+1])
			time.Sleep(pause)
		}
	}
	f.write(text)
}

const virtualRules = 10

// virtualText returns a file with rules of n requests. Any of its lines but the first
// can be the last.
func virtualText(n int) string {
	text := "domain: d\ndescriptors:\n"
	for i := range virtualRules {
		text += fmt.Sprintf("- {key: k%d, limit: %d/1m}\n", i, n)
	}
	return text
}

// watchLoads watches a source and returns a function that returns what was loaded until
// the context ended.
func watchLoads(ctx context.Context, s *Source) (finish func() (sets []*Set, errs []error)) {
	var sets []*Set
	var errs []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(ctx, func(set *Set, err error) error {
			if err != nil {
				errs = append(errs, err)
			} else {
				sets = append(sets, set)
			}
			return err
		})
	}()
	return func() ([]*Set, []error) { <-done; return sets, errs }
}

var pauses = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 120 * time.Millisecond, 500 * time.Millisecond, time.Second}

// The rules change again and again, each time in pieces: some of the same version, so
// that half of a file can be read twice. Reloads are requested at any moment.
func TestWatchNeverLoadsPartOfFile(t *testing.T) {
	for _, pause := range pauses {
		for _, noticed := range []bool{true, false} {
			t.Run(fmt.Sprintf("pause=%v/noticed=%v", pause, noticed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &virtualFile{text: virtualText(1)}
					s := f.source(noticed)
					if _, err := s.Load(t.Context()); err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					finish := watchLoads(ctx, s)
					var operator sync.WaitGroup
					operator.Go(func() {
						for ctx.Err() == nil {
							time.Sleep(rand.N(3 * time.Second))
							s.Reload()
						}
					})
					last := 0
					for n := range 100 {
						last = 2 + n/4
						f.writeInPieces(virtualText(last), pause)
						time.Sleep(rand.N(4 * time.Second))
					}
					time.Sleep(20 * time.Second)
					cancel()
					operator.Wait()
					sets, errs := finish()
					checkWhole(t, sets, last)
					for _, err := range errs {
						if late := (*UnstableError)(nil); !errors.As(err, &late) {
							t.Errorf("%v, want at most reports that the file keeps changing", err)
						}
					}
				})
			})
		}
	}
}

// checkWhole checks that each set has all rules, and the last set those of version n.
func checkWhole(t *testing.T, sets []*Set, n int) {
	t.Helper()
	if len(sets) == 0 {
		t.Fatal("nothing was loaded")
	}
	for i, set := range sets {
		if got := len(set.Rules()); got != virtualRules {
			t.Errorf("load %d of %d has %d rules, want %d", i, len(sets), got, virtualRules)
		}
	}
	rules := sets[len(sets)-1].Rules()
	if got := rules[len(rules)-1].Limit.Count; got != int64(n) {
		t.Errorf("the last load has version %d, want %d", got, n)
	}
}

func TestLoadDuringWriteWaitsForAllPieces(t *testing.T) {
	for _, pause := range pauses {
		synctest.Test(t, func(t *testing.T) {
			for n := range 50 {
				f := &virtualFile{text: virtualText(1)}
				var writer sync.WaitGroup
				writer.Go(func() { f.writeInPieces(virtualText(2), pause) })
				time.Sleep(rand.N(4*pause) + 1)
				set, err := f.source(true).Load(t.Context())
				if late := (*UnstableError)(nil); errors.As(err, &late) && pause == time.Second {
					writer.Wait() // longer than a start waits
					continue
				}
				if err != nil {
					t.Fatalf("pause %v, run %d: %v", pause, n, err)
				}
				checkWhole(t, []*Set{set}, 2)
				writer.Wait()
			}
		})
	}
}

func TestLoadUsesOldFilesAtOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		age   time.Duration
		waits bool
	}{
		{"an hour", time.Hour, false},
		{"a little more than a second", 1300*time.Millisecond + 1, false},
		{"half a second", 500*time.Millisecond + 1, true},
		{"whole seconds, which may be rounded down", 2 * time.Second, true},
		{"in the future", -time.Hour, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &virtualFile{text: virtualText(1), changed: time.Now().Add(-c.age)}
			begun := time.Now()
			if _, err := f.source(true).Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(begun); waited > 0 != c.waits || waited > 2*time.Second {
				t.Errorf("%s: waited %v, want a wait: %v", c.name, waited, c.waits)
			}
		})
	}
}

func TestLoadFailsIfFileKeepsChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &virtualFile{text: virtualText(1)}
		ctx, cancel := context.WithCancel(t.Context())
		var writer sync.WaitGroup
		writer.Go(func() { f.keepChanging(ctx) })
		synctest.Wait()
		_, err := f.source(true).Load(t.Context())
		cancel()
		writer.Wait()
		var late *UnstableError
		if !errors.As(err, &late) || late.For < maxUnstable || late.For > maxUnstable+2*time.Second {
			t.Fatalf("got %v, want an error after %v", err, maxUnstable)
		}
		if want := "/rules.yaml: rule files were not stable after 10s: they keep changing"; err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func (f *virtualFile) keepChanging(ctx context.Context) {
	for n := 2; ctx.Err() == nil; n++ {
		f.write(virtualText(n))
		time.Sleep(700 * time.Millisecond)
	}
}

// The old rules stay in force, and the report is repeated seldom. Then the file is stable.
func TestWatchReportsFileThatKeepsChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &virtualFile{text: virtualText(1)}
		s := f.source(true)
		if _, err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		finish := watchLoads(ctx, s)
		changing, stop := context.WithTimeout(ctx, 150*time.Minute)
		defer stop()
		f.keepChanging(changing)
		f.write(virtualText(7))
		time.Sleep(20 * time.Second)
		cancel()
		sets, errs := finish()
		checkWhole(t, sets, 7)
		if len(sets) != 1 || len(errs) != 3 {
			t.Errorf("%d loads and the errors %v, want one load and three errors in two and a half hours", len(sets), errs)
		}
	})
}

// A checksum makes the pauses between pieces irrelevant, and waiting unnecessary.
func TestSealedFileIsLoadedOnceComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &virtualFile{text: string(Seal([]byte(virtualText(1)))), changed: time.Now()}
		s := f.source(true)
		begun := time.Now()
		if _, err := s.Load(t.Context()); err != nil || time.Since(begun) > 0 {
			t.Fatalf("loaded after %v with the error %v, want it at once", time.Since(begun), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		finish := watchLoads(ctx, s)
		last := 0
		for n := range 20 {
			last = n + 2
			f.writeInPieces(string(Seal([]byte(virtualText(last)))), 5*time.Second)
			time.Sleep(s.o.Look + time.Millisecond)
		}
		cancel()
		sets, errs := finish()
		checkWhole(t, sets, last)
		if len(sets) != 20 {
			t.Errorf("loaded %d versions, want each of 20 right after it was complete", len(sets))
		}
		for _, err := range errs {
			if late := (*UnstableError)(nil); !errors.As(err, &late) || !strings.Contains(err.Error(), "sha256 does not match") {
				t.Errorf("got %v, want reports about the checksum only", err)
			}
		}
	})
}

func TestLoadFailsAtOnceOnOldBrokenSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := string(Seal([]byte(virtualText(1)))) + "# edited\n"
		f := &virtualFile{text: text, changed: time.Now().Add(-time.Hour)}
		begun := time.Now()
		_, err := f.source(true).Load(t.Context())
		var wrong Errors
		if !errors.As(err, &wrong) || wrong[0].Line != 1 || time.Since(begun) > 0 {
			t.Errorf("got %v after %v, want an error about the checksum at once", err, time.Since(begun))
		}
	})
}

func TestSealCoversEveryPrefix(t *testing.T) {
	text := Seal([]byte(virtualText(1)))
	if again := Seal(text); string(again) != string(text) || checkSeal(text) != sealed {
		t.Errorf("sealed twice: %s\nwant what sealing once returns: %s", again, text)
	}
	for i := len(sealPrefix); i < len(text); i++ {
		if checkSeal(text[:i]) != sealBroken {
			t.Errorf("the first %d bytes of %d count as complete", i, len(text))
		}
	}
	if _, err := Parse(File{Name: "f", Text: text[:len(text)-1]}); err == nil || !strings.Contains(err.Error(), "f:1: sha256 does not match") {
		t.Errorf("got %v, want an error about the checksum", err)
	}
	if _, err := Parse(File{Name: "f", Text: text}); err != nil {
		t.Error(err)
	}
	crlf := strings.Replace(string(text), "\n", "\r\n", 1)
	if checkSeal([]byte(crlf)) != sealed {
		t.Error("a checksum line that ends with CRLF does not count")
	}
}
