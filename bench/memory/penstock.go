package main

import (
	"context"

	"github.com/penstock-io/penstock"
)

// defaultMaxKeys is the default MaxKeys of a penstock.Memory.
const defaultMaxKeys = 1_000_000

// limited is penstock as most programs use it: a Limiter on a Store.
type limited struct {
	lim *penstock.Limiter
	ctx context.Context
}

func (l *limited) take(key string) (bool, error) {
	d, err := l.lim.Allow(l.ctx, key)
	return d.Allowed, err
}

func (l *limited) run(w *walk, calls int) (t counts) {
	for range calls {
		t.count(l.take(w.key()))
	}
	return t
}

func newLimited(s penstock.Store, l penstock.Limit) (*limited, error) {
	lim, err := penstock.New(s, l)
	if err != nil {
		return nil, err
	}
	return &limited{lim: lim, ctx: context.Background()}, nil
}

// memoryFor returns a store for n keys: the default one while that is enough.
func memoryFor(n int) *penstock.Memory {
	if n <= defaultMaxKeys {
		return penstock.NewMemory(nil)
	}
	return penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: n})
}

func tokenBucket(p benchLimit) penstock.Limit {
	return penstock.Limit{Count: 1, Period: p.every, Burst: p.burst}
}

// ours is penstock with a token bucket.
var ours = library{name: "penstock", keyed: true, open: func(p benchLimit, n int) (limiter, error) {
	return newLimited(memoryFor(n), tokenBucket(p))
}}

// wrapper is a minimal wrapper of a store.
type wrapper struct{ next penstock.Store }

func (p wrapper) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	return p.next.Take(ctx, r)
}

// directStore is penstock without a Limiter: a Request passed to a Store.
type directStore struct {
	store penstock.Store
	limit penstock.Limit
	ctx   context.Context
}

func (a *directStore) take(key string) (bool, error) {
	d, err := a.store.Take(a.ctx, penstock.Request{Key: key, Limit: a.limit, Cost: 1})
	return d.Allowed, err
}

func (a *directStore) run(w *walk, calls int) (t counts) {
	for range calls {
		t.count(a.take(w.key()))
	}
	return t
}
