package inflight

import (
	"slices"
	"sync"
)

// Keys holds the calls in flight by their keys, so that callers can wait for them to end. The zero value is ready to use.
type Keys[K comparable] struct {
	mu    sync.Mutex
	calls map[K][]<-chan struct{} // in the order in which they began
}

// Begin adds a call about some keys. The channel is closed when the function that is returned ends the call.
func (k *Keys[K]) Begin(keys []K) (ended <-chan struct{}, end func()) {
	done := make(chan struct{})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls == nil {
		k.calls = map[K][]<-chan struct{}{}
	}
	for _, key := range keys {
		k.calls[key] = append(k.calls[key], done)
	}
	return done, func() {
		k.remove(keys, done)
		close(done)
	}
}

func (k *Keys[K]) remove(keys []K, done <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		left := slices.DeleteFunc(k.calls[key], func(other <-chan struct{}) bool { return other == done })
		if k.calls[key] = left; len(left) == 0 {
			delete(k.calls, key)
		}
	}
}

// Of returns the channels of the calls about a key that are in flight, those that began first in front. A caller that
// waits for them waits for none that begins later.
func (k *Keys[K]) Of(key K) []<-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls[key])
}
