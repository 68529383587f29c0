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

// replace opens a new session. The old client waits for the replies to calls in
// flight before it closes, and sends no later calls.
func (r *reconnector) replace(old *session) {
	client, err := r.connect()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconnecting, r.lastAttempt = false, time.Now()
	switch {
	case err == nil && r.current.CompareAndSwap(old, &session{client}):
		go old.close()
	case err == nil: // the store was closed meanwhile
		go client.Close()
	}
}

// close closes the current session at once.
func (r *reconnector) close() {
	if s := r.current.Swap(nil); s != nil {
		s.close()
	}
}
