package inflight

import "sync"

// Keys are those of what is in flight, so that others can wait for its end. The zero value is ready to use.
type Keys[K comparable] struct {
	mu    sync.Mutex
	calls map[K]*keyCalls
}

type keyCalls struct {
	count int
	ended chan struct{}
}

// Begin adds a call about some keys, which the result ends.
func (k *Keys[K]) Begin(keys []K) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls == nil {
		k.calls = map[K]*keyCalls{}
	}
	for _, key := range keys {
		if k.calls[key] == nil {
			k.calls[key] = &keyCalls{ended: make(chan struct{})}
		}
		k.calls[key].count++
	}
	return func() { k.end(keys) }
}

func (k *Keys[K]) end(keys []K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		if c := k.calls[key]; c.count > 1 {
			c.count--
		} else {
			close(c.ended)
			delete(k.calls, key)
		}
	}
}

// Ended returns a channel that is closed when all calls about a key have ended, or nil if there are none.
func (k *Keys[K]) Ended(key K) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.calls[key]; c != nil {
		return c.ended
	}
	return nil
}
