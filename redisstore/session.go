package redisstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// A session is a client that may be replaced by another, because what it is
// connected to is no longer who it should be: a name or a virtual address has
// moved to a new primary, and the old one, which is a replica now, keeps its
// connections. A session ends when the last call on it has come back, so that
// nobody is cut off in the middle of one.
type session struct {
	client rueidis.Client
	users  atomic.Int64 // one of which is whoever may still give it to others
}

func newSession(client rueidis.Client) *session {
	s := &session{client: client}
	s.users.Store(1)
	return s
}

// enter reports whether the session has not ended.
func (s *session) enter() bool {
	for n := s.users.Load(); n > 0; n = s.users.Load() {
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (s *session) leave() {
	if s.users.Add(-1) == 0 {
		go s.client.Close() // which waits for an answer to a farewell
	}
}

// sessions is the session that calls are made on, and how to get another.
type sessions struct {
	connect func() (rueidis.Client, error)
	current atomic.Pointer[session] // nil when closed

	mu      sync.Mutex
	renewed time.Time // when the last one began, or was not to be had
	gap     time.Duration
	under   bool // whether one is being made
}

// The time from one session to the next doubles from one to the other while
// there is a reason for another.
const (
	firstRenewGap = 100 * time.Millisecond
	lastRenewGap  = time.Second
)

// enter returns the current session, which must be left again, or nil if there
// are no more.
func (ss *sessions) enter() *session {
	for {
		s := ss.current.Load()
		if s == nil || s.enter() {
			return s
		}
	}
}

// renew replaces a session in the background, if it is the current one and that
// was not done just now.
func (ss *sessions) renew(old *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	since := time.Since(ss.renewed)
	if ss.under || ss.current.Load() != old || since < ss.gap {
		return
	}
	if ss.gap = min(2*ss.gap, lastRenewGap); since > 2*lastRenewGap {
		ss.gap = firstRenewGap
	}
	ss.under = true
	go ss.replace(old)
}

func (ss *sessions) replace(old *session) {
	client, err := ss.connect()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.under, ss.renewed = false, time.Now()
	switch {
	case err == nil && ss.current.CompareAndSwap(old, newSession(client)):
		old.leave()
	case client != nil: // it does not answer, or is not wanted any more
		go client.Close()
	}
}

// close ends the current session at once.
func (ss *sessions) close() {
	if s := ss.current.Swap(nil); s != nil {
		s.client.Close()
	}
}
