package penstock

import "context"

// TakePrepared implements [PreparedStore].
func (m *Memory) TakePrepared(ctx context.Context, takes []PreparedTake) error {
	for i := range takes {
		if !m.isPrepared(&takes[i]) {
			return m.takeUnprepared(ctx, takes)
		}
	}
	switch {
	case len(takes) == 1:
		t := &takes[0]
		t.Decision.Source = SourceStore
		m.take(t.limit, t.Key, t.forAlgorithm(), t.Decision)
		return nil
	case m.takeFast(takes):
		return nil
	}
	return m.takeSlow(takes)
}

// isPrepared reports whether a take was prepared for this store, and is valid.
func (m *Memory) isPrepared(t *PreparedTake) bool {
	cl := t.limit
	return cl != nil && cl.tick == m.tick && cl.key == m.key && !cl.limit.hasPermits() &&
		t.Key != "" && t.Cost >= 0 && t.keepFree >= 0 && t.Decision != nil
}

// takeSlow decides valid takes that cannot be a fastBatch.
func (m *Memory) takeSlow(takes []PreparedTake) error {
	b, ds := newMemoryBatch(m, len(takes)), make([]Decision, len(takes))
	for i := range takes {
		b.push(takes[i].limit, takes[i].Key, takes[i].forAlgorithm())
	}
	b.lock()
	err := b.decide(ds)
	b.unlock()
	return writeDecisions(takes, ds, err)
}

// takeUnprepared decides takes as requests, or returns their error.
func (m *Memory) takeUnprepared(ctx context.Context, takes []PreparedTake) error {
	rs, ds := make([]Request, len(takes)), make([]Decision, len(takes))
	for i := range takes {
		if takes[i].Decision == nil {
			return writeDecisions(takes, ds, requestError(i, errNoDecision))
		}
		rs[i] = takes[i].request()
	}
	return writeDecisions(takes, ds, m.TakeAll(ctx, rs, ds))
}

// writeDecisions writes the decisions to where the takes want them. After an error they are
// zero.
func writeDecisions(takes []PreparedTake, ds []Decision, err error) error {
	if err != nil {
		clear(ds)
	}
	for i := range takes {
		if takes[i].Decision != nil {
			*takes[i].Decision = ds[i]
		}
	}
	return err
}
