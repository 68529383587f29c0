package redisstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// A session is a rueidis client that is replaced when it is connected to the
// wrong server: a name or a virtual address has moved to a new primary, and the
// old one, now a replica, keeps its connections.
type session struct {
	client rueidis.Client // nil before the first connection
	calls  atomic.Int64   // in progress
}

func (s *session) close() {
	if s.client != nil {
		s.client.Close()
	}
}

// A reconnector holds the current session and replaces it.
type reconnector struct {
	connect func() (rueidis.Client, error)
	current atomic.Pointer[session] // nil when closed

	mu           sync.Mutex
	lastAttempt  time.Time // when the last attempt to reconnect ended
	backoff      time.Duration
	reconnecting bool
}

// use returns the current session, which stays open until release; or nil if the
// store is closed.
func (r *reconnector) use() *session {
	for {
		s := r.current.Load()
		if s == nil {
			return nil
		}
		s.calls.Add(1)
		if r.current.Load() == s {
			return s
		}
		s.release() // it was replaced meanwhile
	}
}

func (s *session) release() { s.calls.Add(-1) }

// The pause before a reconnection doubles from minReconnectGap to maxReconnectGap. It
// starts again after two seconds without a reconnection.
const (
	minReconnectGap = 100 * time.Millisecond
	maxReconnectGap = time.Second
)

// reconnect replaces a session in the background, if it is the current one and the
// last attempt was not too recent.
func (r *reconnector) reconnect(old *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := time.Since(r.lastAttempt)
	if r.reconnecting || r.current.Load() != old || since < r.backoff {
		return
	}
	if r.backoff = min(2*r.backoff, maxReconnectGap); since > 2*maxReconnectGap {
		r.backoff = minReconnectGap
	}
	r.reconnecting = true
	go r.replace(old)
}

// replace opens a new session, and closes the old one when its calls have ended.
func (r *reconnector) replace(old *session) {
	client, err := r.connect()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconnecting, r.lastAttempt = false, time.Now()
	switch {
	case err == nil && r.current.CompareAndSwap(old, &session{client: client}):
		go r.retire(old)
	case err == nil: // the store was closed meanwhile
		go client.Close()
	}
}

// retire closes a replaced session when its calls have ended, each by its deadline. A
// call that rueidis rejects because it is closing may or may not have been sent, so it
// could not be repeated. If the store is closed, it waits no longer.
func (r *reconnector) retire(old *session) {
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for old.calls.Load() > 0 && r.current.Load() != nil {
		<-poll.C
	}
	old.close()
}

// close closes the current session at once.
func (r *reconnector) close() {
	if s := r.current.Swap(nil); s != nil {
		s.close()
	}
}
