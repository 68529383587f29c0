package overrides

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func limited(key, limit string) Override { return Override{Rule: "r", Key: key, Limit: limit} }

func TestPutIsAllOrNothing(t *testing.T) {
	b := newSet(t, ban("k=0"))
	for _, c := range []struct {
		bad   Override
		field string
	}{
		{Override{Key: "k=2", Limit: "ban"}, "rule"},
		{Override{Rule: "r", Limit: "ban"}, "key"},
		{Override{Rule: "r", Key: "k=2"}, "limit"},
		{limited("k=2", "1000"), "limit"},
		{limited("k=2", "10/1m name=x"), "limit"},
		{limited("k=2", "10/1m "+strings.Repeat(" ", 300)), "limit"},
		{limited("k=2*", "10/1m"), "key"},
		{limited("k=10.0.0.0/8", "10/1m"), "key"},
		{ban("k=" + strings.Repeat("x", 2000)), "key"},
		{ban("k=\xff"), "key"},
		{ban("k=\x00"), "key"},
		{Override{Rule: "r", Key: "k=2", Limit: "ban", Reason: strings.Repeat("x", 257)}, "reason"},
		{Override{Rule: "r", Key: "k=2", Limit: "ban", Until: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, "until"},
		{Override{Rule: "r", Key: "k=2", Limit: "ban", Strikes: -1}, "strikes"},
	} {
		err := b.Put(t.Context(), []Override{ban("k=1"), c.bad})
		var item *ItemError
		var field *FieldError
		if !errors.As(err, &item) || item.Index != 1 || !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%+v: got %v, want an error of item 1 about %s", c.bad, err, c.field)
		}
	}
	if n := len(b.List("", "")); n != 1 {
		t.Errorf("%d overrides, want the first alone", n)
	}
}

func TestDeleteIsAllOrNothing(t *testing.T) {
	b := newSet(t, ban("k=0"))
	if err := b.Delete(t.Context(), []Override{ban("k=0"), ban("k=1")}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if patternOf(b, "k=0") == "" {
		t.Error("the other was deleted")
	}
	if err := b.Delete(t.Context(), []Override{ban("k=0")}); err != nil || patternOf(b, "k=0") != "" {
		t.Errorf("not deleted: %v", err)
	}
	if err := b.Delete(t.Context(), []Override{ban("k=0")}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a second time: got %v, want ErrNotFound", err)
	}
}

func TestListSaysWhenAnOverrideWasUsed(t *testing.T) {
	b := newSet(t, ban("k=1"), ban("k=2*"), Override{Rule: "q", Key: "k=3", Limit: "unlimited", Reason: "office"})
	for _, key := range []string{"k=1", "k=22"} {
		if found, _ := b.Index("r").Peek(key); found == nil {
			t.Errorf("%s: found none", key)
		}
	}
	for _, o := range b.List("", "") {
		if !o.Used.IsZero() {
			t.Errorf("%+v: a look at it counted as a use", o)
		}
	}
	b.Index("r").Find("k=22")
	got := b.List("", "")
	if len(got) != 3 || got[0].Rule != "q" || got[0].Reason != "office" || !got[1].Used.IsZero() || time.Since(got[2].Used) > time.Hour {
		t.Errorf("got %+v", got)
	}
	if got := b.List("r", "k=1"); len(got) != 1 || got[0].Key != "k=1" {
		t.Errorf("got %+v", got)
	}
}

func TestSetIsBounded(t *testing.T) {
	b := newSet(t)
	if b.max != MaxOverrides {
		t.Errorf("room for %d overrides, want %d", b.max, MaxOverrides)
	}
	b.max = 1000
	all := make([]Override, b.max)
	for i := range all {
		all[i] = ban(fmt.Sprint("k=", i))
	}
	mustPut(t, b, all...)
	if err := b.Put(t.Context(), []Override{ban("k=more")}); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	mustPut(t, b, ban("k=7")) // replaces
	if err := b.Delete(t.Context(), all[:10]); err != nil {
		t.Fatal(err)
	}
	mustPut(t, b, ban("k=more"))
	for _, key := range []string{"k=more", "k=10", "k=999"} {
		if patternOf(b, key) != key {
			t.Errorf("%s is not found", key)
		}
	}
	if patternOf(b, "k=9") != "" || patternOf(b, "k=1000") != "" {
		t.Error("found what is not there")
	}
}

func openFile(t testing.TB, path string) *Set {
	t.Helper()
	b, err := Open(&Options{File: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// A daemon that has learnt of very many deletions still learns of what is new, also from its
// file.
func TestFullSetForgetsEndedOverridesForNewOnes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides")
	b := openFile(t, path)
	now := time.Now().Add(-time.Hour).UnixMicro()
	deleted := make([]Record, maxEntries)
	for i := range deleted {
		deleted[i] = Record{Override: ban(fmt.Sprint("k=", i)), Version: now + int64(i), Deleted: true}
	}
	b.Receive(deleted)
	b.Receive([]Record{{Override: ban("k=new"), Version: now + maxEntries}})
	for _, b := range []*Set{b, openFile(t, path)} {
		if patternOf(b, "k=new") == "" {
			t.Errorf("a ban is not in force beside %d deletions", len(b.entries))
		}
	}
}

func TestFileKeepsOverridesOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides")
	b := openFile(t, path)
	until := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	mustPut(t, b, ban("k=1"), ban("k=2"), Override{Rule: "r\n", Key: "k=\"3\"", Limit: "10/1m", Until: until, Reason: "Größe,\n<b>", Strikes: 2})
	mustPut(t, b, limited("k=1", "unlimited"))
	if err := b.Delete(t.Context(), []Override{ban("k=2")}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(b.List("", "")) // the process is killed: it is not closed
	for range 2 {
		if got := fmt.Sprint(openFile(t, path).List("", "")); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestFileWithoutItsEndOrWithDamageKeepsTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides")
	b := openFile(t, path)
	mustPut(t, b, ban("k=1"), ban("k=2"))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := "nonsense\n[\"r\",\"k=3\",\"99999999999999999999 {}\"]\n" + strings.Repeat("x", 24*maxStored) + "\n"
	if err := os.WriteFile(path, append(append([]byte(damage), text...), `["r","k=4","17`...), 0o600); err != nil {
		t.Fatal(err)
	}
	b = openFile(t, path)
	mustPut(t, b, ban("k=5"))
	got := ""
	for _, o := range openFile(t, path).List("", "") {
		got += o.Key + " "
	}
	if got != "k=1 k=2 k=5 " {
		t.Errorf("got %s", got)
	}
}

func TestFileIsRewrittenWhenOutOfDate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides")
	b := openFile(t, path)
	for range 100 {
		mustPut(t, b, ban("k=1"))
	}
	b = openFile(t, path)
	mustPut(t, b, ban("k=2"))
	if text, _ := os.ReadFile(path); strings.Count(string(text), "\n") != 2 {
		t.Errorf("got %s, want two lines", text)
	}
}

// A change that finds the file too long, and has it rewritten, is in the file too. So is one
// that finds that it cannot be rewritten.
func TestFileHasTheChangeThatRewritesIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides")
	b := openFile(t, path)
	for i := range 2 {
		b.journal.lines = 4*maxEntries + i
		mustPut(t, b, ban(fmt.Sprint("k=", i)))
	}
	if got := keysOf(openFile(t, path)); got != "k=0:ban k=1:ban" {
		t.Errorf("after a restart: got %s", got)
	}
	if err := os.MkdirAll(filepath.Join(path+".new", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.journal.lines = 4*maxEntries + 1
	mustPut(t, b, ban("k=2"))
	if got := keysOf(openFile(t, path)); got != "k=0:ban k=1:ban k=2:ban" {
		t.Errorf("after another restart: got %s", got)
	}
}

func TestEndedOverridesAreForgottenAfterADay(t *testing.T) {
	now := time.Now()
	b, err := Open(&Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	o := ban("k=1")
	o.Until = now.Add(time.Minute)
	mustPut(t, b, o, ban("k=2*"), ban("k=3"))
	if err := b.Delete(t.Context(), []Override{ban("k=2*")}); err != nil {
		t.Fatal(err)
	}
	b.Purge(t.Context())
	if len(b.entries) != 3 {
		t.Errorf("%d entries, want all", len(b.entries))
	}
	now = now.Add(retention + time.Hour)
	b.Purge(t.Context())
	if len(b.entries) != 1 || b.Count(Banned) != 1 {
		t.Errorf("%d entries, want one", len(b.entries))
	}
}

func TestFindDuringChanges(t *testing.T) {
	b := newSet(t, ban("k=stays"), ban("n=10.0.0.0/8"))
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if patternOf(b, "k=stays") == "" || patternOf(b, "n=10.1.1.1") == "" || patternOf(b, "k=never") != "" {
					t.Error("a change of others changed the result")
					return
				}
			}
		})
	}
	for i := range 300 {
		mustPut(t, b, ban(fmt.Sprint("k=", i)), ban(fmt.Sprint("n=10.0.", i%250, ".0/24")))
		if i%3 == 0 {
			if err := b.Delete(t.Context(), []Override{ban(fmt.Sprint("k=", i))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	readers.Wait()
}

func keysOf(s *Set) (text string) {
	for _, o := range s.List("", "") {
		text += o.Key + ":" + o.Limit + " "
	}
	return strings.TrimSpace(text)
}

func FuzzParseRecord(f *testing.F) {
	f.Add("r\x00k=1", `17 {"limit":"10/1m"}`)
	f.Add("r\x00k=1*", `17 {"limit":"ban","until":5,"reason":"x"}`)
	f.Add("r\x00k=1", "17 ")
	f.Fuzz(func(t *testing.T, id, text string) {
		r, err := ParseRecord(id, text)
		if err != nil {
			return
		}
		again, err := ParseRecord(r.ID(), fmt.Sprintf("%d %s", r.Version, r.Value()))
		if err != nil || again != r {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
