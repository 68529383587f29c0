package overrides

import (
	"context"
	"strconv"
	"time"
)

// When an override was last used is in the hash, too, in fields of its own: ~ID, in Unix
// seconds. A daemon adds its uses once a minute and when it ends, in scripts of pageSize, so
// each override is written at most once a minute by each daemon. The time is of interest to
// operators only: no daemon decides by it, so they are read when a list is shown, and an
// error costs nothing but their accuracy.

// tellInterval is the time between two reports of uses to other daemons.
const tellInterval = time.Minute

// lastTellTimeout bounds the report of a daemon that ends.
const lastTellTimeout = 250 * time.Millisecond

// addUsesTimeout bounds how long a list waits for the uses by other daemons.
const addUsesTimeout = 2 * time.Second

// A use is when an override was last used, in Unix seconds.
type use struct {
	entry *Entry
	used  int64
}

// tellUses writes the uses since the last call to Redis.
func (b *Book) tellUses(ctx context.Context) {
	if b.redis == nil {
		return
	}
	uses := b.newUses()
	for start := 0; start < len(uses); start += pageSize {
		page := uses[start:min(start+pageSize, len(uses))]
		args := make([]string, 0, 2*len(page))
		for _, u := range page {
			args = append(args, u.entry.record.id(), strconv.FormatInt(u.used, 10))
		}
		if _, err := b.redis.eval(ctx, useScript, args...); err != nil {
			return // the next call tells them
		}
		b.mu.Lock()
		for _, u := range page {
			u.entry.told = u.used
		}
		b.mu.Unlock()
	}
}

// newUses returns the uses that Redis was not told of.
func (b *Book) newUses() (uses []use) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if used := e.used.Load(); used > e.told && !e.record.deleted {
			uses = append(uses, use{e, used})
		}
	}
	return uses
}

// tellLastUses reports the uses of a process that ends.
func (b *Book) tellLastUses(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTellTimeout)
	defer cancel()
	b.tellUses(ctx)
}

// forgetTold makes the next report complete, because the hash was lost.
func (b *Book) forgetTold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		e.told = 0
	}
}

// AddUses adds the uses by all daemons to a list, as far as Redis answers. Those of other
// daemons may be a minute old.
func (b *Book) AddUses(ctx context.Context, list []Listed) {
	if b.redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, addUsesTimeout)
	defer cancel()
	for start := 0; start < len(list); start += pageSize {
		page := list[start:min(start+pageSize, len(list))]
		ids := make([]string, len(page))
		for i := range page {
			ids[i] = (&record{Override: page[i].Override}).id()
		}
		seconds, err := b.redis.eval(ctx, usesScript, ids...)
		if err != nil || len(seconds) != len(page) {
			return
		}
		for i := range page {
			page[i].addUse(seconds[i], b.now())
		}
	}
}

// addUse makes the text of Unix seconds the last use, if it is later. The clock of another
// daemon may be ahead, and any program may have written the text.
func (l *Listed) addUse(text string, now time.Time) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds <= 0 {
		return
	}
	if used := time.Unix(min(seconds, now.Unix()), 0).UTC(); used.After(l.Used) {
		l.Used = used
	}
}
