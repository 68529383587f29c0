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
// connections.
type session struct {
	client rueidis.Client // nil before there is one
}

func (s *session) close() {
	if s.client != nil {
		s.client.Close()
	}
}

// reconnector is the session that calls are made on, and how to get another.
type reconnector struct {
	connect func() (rueidis.Client, error)
	current atomic.Pointer[session] // nil when closed

	mu           sync.Mutex
	lastAttempt  time.Time // when the last one began, or was not to be had
	backoff      time.Duration
	reconnecting bool // whether one is being made
}

// The time from one session to the next doubles from one to the other while
// there is a reason for another.
const (
	minReconnectGap = 100 * time.Millisecond
	maxReconnectGap = time.Second
)

// reconnect replaces a session in the background, if it is the current one and that
// was not done just now.
func (ss *reconnector) reconnect(old *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	since := time.Since(ss.lastAttempt)
	if ss.reconnecting || ss.current.Load() != old || since < ss.backoff {
		return
	}
	if ss.backoff = min(2*ss.backoff, maxReconnectGap); since > 2*maxReconnectGap {
		ss.backoff = minReconnectGap
	}
	ss.reconnecting = true
	go ss.replace(old)
}

// replace makes another session. The client of the old one answers those who are
// waiting before it closes, and whoever comes later has not been sent.
func (ss *reconnector) replace(old *session) {
	client, err := ss.connect()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.reconnecting, ss.lastAttempt = false, time.Now()
	switch {
	case err == nil && ss.current.CompareAndSwap(old, &session{client}):
		go old.close()
	case err == nil: // the store was closed meanwhile
		go client.Close()
	}
}

// close ends the current session at once.
func (ss *reconnector) close() {
	if s := ss.current.Swap(nil); s != nil {
		s.close()
	}
}
