package redisstore

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/penstock-io/penstock"
)

// deniedKeys remembers the keys that denied the last TakeAll across slots, or failed in it,
// so that the next one peeks before it reserves units of other keys. It is of a fixed size
// and two keys may share a place: a key that is forgotten costs a reservation and its
// refund.
type deniedKeys struct {
	seed   maphash.Seed
	hashes [1024]atomic.Uint64 // 0 if there is none
}

// find returns the hash of a key, and its place.
func (k *deniedKeys) find(key string) (hash uint64, at *atomic.Uint64) {
	hash = maphash.String(k.seed, key) | 1
	return hash, &k.hashes[hash>>32%uint64(len(k.hashes))]
}

func (k *deniedKeys) has(key string) bool {
	hash, at := k.find(key)
	return at.Load() == hash
}

// note adds the keys of the items that were denied, and reports whether any was.
func (k *deniedKeys) note(items []takeAllItem, ds []penstock.Decision) (denied bool) {
	for i := range items {
		if isDenied(ds[i]) {
			hash, at := k.find(items[i].key)
			at.Store(hash)
			denied = true
		}
	}
	return denied
}

// forget removes the keys of items that were granted.
func (k *deniedKeys) forget(items []takeAllItem) {
	for i := range items {
		if hash, at := k.find(items[i].key); at.Load() == hash {
			at.Store(0)
		}
	}
}
