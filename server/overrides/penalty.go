package overrides

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/setassoc"
	"github.com/penstock-io/penstock/rules"
)

// An offence is a key that has been denied as often as the penalty of its rule says.
type offence struct {
	rule, key string
	penalty   rules.Penalty
}

// penaltyQueue counts denials, and queues the keys to ban.
type penaltyQueue struct {
	seed    maphash.Seed
	table   func() *setassoc.Table[denialSet] // makes it when the first key is denied under a penalty
	queue   chan offence
	skipped atomic.Uint64 // offences without room in the queue or among the overrides

	// The following are guarded by Set.mu.
	bans     int64     // of penalties, with those that have ended
	searched time.Time // when evictEnded last looked for bans that have ended
	reported time.Time // when the log last said that there is no room
}

// maxCounted is how many keys have their denials counted at once, for all rules.
const maxCounted = 1 << 16

// maxQueued bounds the bans that wait to be set.
const maxQueued = 1 << 10

// A denialSet counts the denials of a few keys.
type denialSet struct {
	mu   sync.Mutex
	keys [setassoc.Ways]denials
}

// denials are how often a key was denied since its window began.
type denials struct {
	hash  uint64 // 0 if the place is free
	begin int64  // Unix nanoseconds
	end   int64
	count int64
}

func (q *penaltyQueue) init() {
	q.seed, q.queue = maphash.MakeSeed(), make(chan offence, maxQueued)
	q.table = sync.OnceValue(func() *setassoc.Table[denialSet] { return new(setassoc.New[denialSet](maxCounted)) })
}

// CountDenial counts that a key of a rule was denied. After as many denials as the penalty
// says, [Set.Run] bans the key. It does not keep the key.
//
// At most 65,536 keys are counted at once. A key that finds no place takes a denial from
// each key in its way, and takes the place of one that has none left. So the count of a key
// is never too high, and that of a key which is denied much more often than others is not
// lost, however many other keys there are.
func (s *Set) CountDenial(rule, key string, p *rules.Penalty) {
	q := &s.penalties
	now := s.now().UnixNano()
	if !q.count(rule, key, p, now) {
		return
	}
	select {
	case q.queue <- offence{rule: rule, key: strings.Clone(key), penalty: *p}:
	default:
		q.skipped.Add(1)
	}
}

// Skipped returns how many bans were not set because too many were.
func (s *Set) Skipped() uint64 { return s.penalties.skipped.Load() }

// count reports whether this denial is the last that the penalty allows.
func (q *penaltyQueue) count(rule, key string, p *rules.Penalty, now int64) bool {
	hash := max(maphash.String(q.seed, key)^maphash.String(q.seed, rule)*3, 1)
	set := q.table().Of(hash)
	set.mu.Lock()
	defer set.mu.Unlock()
	d := set.place(hash, now)
	if d == nil {
		return false
	}
	if d.hash != hash || d.end <= now || d.begin > now {
		*d = denials{hash: hash, begin: now, end: now + int64(p.Within)}
	}
	if d.count++; d.count < p.After {
		return false
	}
	*d = denials{}
	return true
}

// place returns the place of a key, or one that is free or whose window has ended. If there
// is none, it takes a denial from each key, and returns nil unless that frees a place.
func (s *denialSet) place(hash uint64, now int64) (free *denials) {
	for i := range s.keys {
		switch d := &s.keys[i]; {
		case d.hash == hash:
			return d
		case d.hash == 0 || d.end <= now:
			free = d
		}
	}
	if free != nil {
		return free
	}
	for i := range s.keys {
		if s.keys[i].count--; s.keys[i].count <= 0 {
			free = &s.keys[i]
		}
	}
	return free
}

// BanOffenders bans the keys in the queue.
func (s *Set) BanOffenders(ctx context.Context) {
	for {
		select {
		case o := <-s.penalties.queue:
			s.ban(ctx, &o)
		default:
			return
		}
	}
}

// ban bans a key, twice as long as the last time. A key with an override that an operator
// set keeps it. If another daemon bans the key at the same time, one of the bans holds.
func (s *Set) ban(ctx context.Context, o *offence) {
	s.evictEnded(ctx)
	r, ok := s.nextBan(o)
	if !ok {
		return
	}
	err := s.write(ctx, []Record{r})
	switch {
	case err == nil:
		s.log.Info("key banned by a penalty", "rule", r.Rule, "key", r.Key, "until", r.Until, "strikes", r.Strikes)
	case errors.Is(err, ErrConflict) || ctx.Err() != nil:
	default:
		s.penalties.skipped.Add(1)
		s.log.Warn("key not banned by a penalty", "rule", r.Rule, "key", r.Key, "err", err)
	}
}

// evictEnded forgets the bans of penalties that have ended, if there is no room for another ban:
// only those in force may keep offenders from being banned. It looks for them once a second.
func (s *Set) evictEnded(ctx context.Context) {
	s.mu.Lock()
	now := s.now()
	mayLook := s.penalties.bans >= s.maxPenalties() && now.Sub(s.penalties.searched).Abs() >= time.Second
	if mayLook {
		s.penalties.searched = now
	}
	s.mu.Unlock()
	if mayLook {
		s.forget(ctx, func(e *Entry) bool { return e.record.Strikes > 0 && e.endedAt(now.UnixNano()) })
	}
}

// maxPenalties is how many bans penalties may set, so that a flood of offenders leaves room for
// what operators set.
func (s *Set) maxPenalties() int64 { return int64(s.max / 2) }

const penaltyReason = "denied too often"

// nextBan returns the ban of an offence. It is not ok if the key must not be banned.
func (s *Set) nextBan(o *offence) (r Record, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r = Record{Override: Override{
		Rule: o.rule, Key: Literal(o.key), Limit: banText, Reason: penaltyReason, Strikes: 1,
	}, Replaces: new(int64)}
	old := s.entries[r.ID()]
	if old != nil {
		*r.Replaces = old.record.Version
		if !old.endedAt(now.UnixNano()) {
			return r, false
		}
		if !old.record.Deleted && old.record.Strikes > 0 && !old.record.expiredAt(now, o.penalty.UpTo) {
			r.Strikes = min(old.record.Strikes+1, maxStrikes)
		}
	}
	full := old == nil && s.penalties.bans >= s.maxPenalties()
	if err := r.Validate(); err != nil || full {
		s.penalties.skipped.Add(1)
		s.reportFull(now, full)
		return r, false
	}
	r.Until = now.Add(banLength(&o.penalty, r.Strikes)).UTC()
	return r, true
}

// reportFull logs, once a minute, that penalties are skipped because there are too many bans.
func (s *Set) reportFull(now time.Time, full bool) {
	if q := &s.penalties; full && now.Sub(q.reported).Abs() >= time.Minute {
		q.reported = now
		s.log.Warn("keys are not banned by penalties: there are too many bans", "bans", s.penalties.bans, "skipped", q.skipped.Load())
	}
}

// banLength returns how long the n-th ban in a row is.
func banLength(p *rules.Penalty, n int) time.Duration {
	d := p.For
	for ; n > 1 && d < p.UpTo; n-- {
		d *= 2
	}
	return min(d, p.UpTo)
}
