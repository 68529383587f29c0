package observe

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/topkeys"
)

// A Board is where daemons leave their summaries for each other. No daemon calls another.
type Board interface {
	// Put replaces the summary of a daemon, and returns how many daemons have one.
	Put(ctx context.Context, daemon string, summary []byte) (daemons int, err error)

	// Remove removes a daemon that ends.
	Remove(ctx context.Context, daemon string) error

	// Notices returns the daemons that were heard of lately, a bounded number of them.
	Notices(ctx context.Context) ([]Notice, error)
}

// A Notice is what a board knows of a daemon.
type Notice struct {
	Daemon  string
	Updated time.Time
	Summary []byte // nil if it is too old
}

const (
	// PublishInterval is how often a daemon leaves its summary.
	PublishInterval = 10 * time.Second

	// SummaryExpiry is how long a summary is kept. A daemon without one is missing.
	SummaryExpiry = 35 * time.Second

	// ForgetMissing is how long a missing daemon is shown.
	ForgetMissing = 10 * time.Minute

	// MaxDaemons is how many daemons are shown: a board can be written to by other
	// programs.
	MaxDaemons = 100

	// MaxSummaryBytes is how long a summary may be.
	MaxSummaryBytes = 128 << 10

	// MaxDaemonName is how long the name of a daemon may be, in bytes.
	MaxDaemonName = 255

	// boardCache is how long notices are reused, and boardTimeout how long a query waits
	// for them.
	boardCache   = 2 * time.Second
	boardTimeout = time.Second

	// withdrawTimeout is how long a daemon that ends waits for the board.
	withdrawTimeout = 250 * time.Millisecond
)

// A fleet is what a daemon knows of others.
type fleet struct {
	failing bool // the last publication failed

	mu      sync.Mutex
	read    time.Time // when the board was last read
	peers   []peer    // without this daemon
	ignored map[string]bool
}

// A peer is another daemon. Its summary is nil if the daemon is missing, or the summary is
// not valid.
type peer struct {
	daemon  string
	updated time.Time
	summary *peerSummary
}

// Publish leaves the daemon's summary for others until ctx ends, and removes it then.
func (o *Observer) Publish(ctx context.Context) {
	if o.options.Board == nil {
		return
	}
	o.PublishOnce(ctx)
	for monotime.Sleep(ctx, PublishInterval) == nil {
		o.PublishOnce(ctx)
	}
	o.withdraw(context.WithoutCancel(ctx))
}

// withdraw removes the daemon from the board, unless that would delay the shutdown.
func (o *Observer) withdraw(ctx context.Context) {
	if o.fleet.failing {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_ = o.options.Board.Remove(ctx, o.options.Name) // otherwise it is shown as missing for a while
}

// PublishOnce leaves the daemon's summary for others. It logs the first failure, and the
// first success after it.
func (o *Observer) PublishOnce(ctx context.Context) {
	f := &o.fleet
	ctx, cancel := context.WithTimeout(ctx, PublishInterval/2)
	defer cancel()
	summary, err := o.encodeSummary()
	if err == nil {
		var daemons int
		if daemons, err = o.options.Board.Put(ctx, o.options.Name, summary); err == nil && o.options.OnDaemons != nil {
			o.options.OnDaemons(daemons)
		}
	}
	switch {
	case ctx.Err() == context.Canceled:
		return
	case err != nil && !f.failing:
		o.options.Log.Warn("summary for other daemons not written", "err", err)
	case err == nil && f.failing:
		o.options.Log.Info("summary for other daemons written again")
	}
	f.failing = err != nil
}

// others returns the other daemons. If the board cannot be read, it returns those of the
// last time, which grow old.
func (o *Observer) others(ctx context.Context) []peer {
	f := &o.fleet
	if o.options.Board == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := o.options.Now()
	if now.Sub(f.read) < boardCache {
		return f.peers
	}
	f.read = now
	ctx, cancel := context.WithTimeout(ctx, boardTimeout)
	defer cancel()
	notices, err := o.options.Board.Notices(ctx)
	if err != nil {
		f.peers = expired(f.peers, now)
		return f.peers
	}
	f.peers = nil
	for _, n := range notices[:min(len(notices), MaxDaemons)] {
		if n.Daemon != o.options.Name {
			f.peers = append(f.peers, o.decode(n))
		}
	}
	return f.peers
}

// expired returns peers, of which those are missing whose summaries are too old. It makes a
// new list, because the old one may be in use.
func expired(peers []peer, now time.Time) []peer {
	peers = slices.Clone(peers)
	for i := range peers {
		if now.Sub(peers[i].updated) > SummaryExpiry {
			peers[i].summary = nil
		}
	}
	return peers
}

// decode returns what a notice says. An invalid summary is logged once for each daemon.
func (o *Observer) decode(n Notice) peer {
	ignored, p := o.fleet.ignored, peer{daemon: n.Daemon, updated: n.Updated}
	if n.Summary == nil {
		return p
	}
	summary, err := decodeSummary(n.Summary)
	if err == nil {
		p.summary = summary
		delete(ignored, n.Daemon)
		return p
	}
	if !ignored[n.Daemon] && len(ignored) < MaxDaemons {
		ignored[n.Daemon] = true
		o.options.Log.Warn("summary of another daemon ignored", "daemon", n.Daemon, "err", err)
	}
	return p
}

// mergeLive adds other daemons to what this one does.
func (l *Live) mergeLive(bounds []float64, peers []peer) {
	l.Daemons = allDaemons(Daemon{Name: l.Daemon, Version: l.Version, Started: l.Started, Updated: l.Time, Rates: l.Rates}, peers)
	end, oldest := l.Series.end(), l.Series.end()-int64(SummaryExpiry/time.Second)
	for _, p := range peers {
		if p.summary != nil {
			theirs := p.summary.Windows[l.Window]
			l.add(p.daemon, &theirs, bounds)
			end = min(end, max(theirs.Series.end(), oldest)) // its clock may be wrong
		}
	}
	l.Series.cutAt(end)
}

// allDaemons lists this daemon and the others.
func allDaemons(own Daemon, peers []peer) []Daemon {
	all := []Daemon{own}
	for _, p := range peers {
		d := Daemon{Name: p.daemon, Updated: p.updated.UTC(), Missing: p.summary == nil}
		if p.summary != nil {
			now := p.summary.Windows[TwoMinutes]
			d.Version, d.Started, d.Rates = now.Version, now.Started.UTC(), now.Rates
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Daemon) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (l *Live) add(daemon string, theirs *peerWindow, bounds []float64) {
	l.Totals.add(theirs.Totals)
	l.Counts.add(theirs.Series.sum())
	l.Unmatched += theirs.Unmatched
	l.Banned += theirs.Banned
	l.Rates.add(theirs.Rates)
	l.Series.add(&theirs.Series)
	l.addRules(theirs.Rules)
	l.addListeners(theirs.Listeners, theirs.Latency, bounds)
	l.Store.add(daemon, &theirs.Store)
	l.Process.HeapBytes += theirs.Process.HeapBytes
	l.Process.TotalBytes += theirs.Process.TotalBytes
	l.Process.Goroutines += theirs.Process.Goroutines
	l.Process.Processors += theirs.Process.Processors
}

func (r *Rates) add(other Rates) {
	r.Decisions += other.Decisions
	r.Allowed += other.Allowed
	r.Denied += other.Denied
	r.Shadowed += other.Shadowed
	r.Errors += other.Errors
}

// columns returns the numbers of a series by outcome.
func (s *Series) columns() [columns]*[]uint64 {
	return [columns]*[]uint64{&s.Allowed, &s.Denied, &s.Shadowed, &s.Errors}
}

// add adds another series with the same step, as far as it overlaps in time.
func (s *Series) add(other *Series) {
	shift := int((other.From - s.From) / int64(s.Step))
	theirs := other.columns()
	for c, mine := range s.columns() {
		for i, n := range *theirs[c] {
			if at := i + shift; at >= 0 && at < len(*mine) {
				(*mine)[at] += n
			}
		}
	}
}

// end returns when the last step began.
func (s *Series) end() int64 { return s.From + int64(len(s.Allowed)-1)*int64(s.Step) }

// cutAt cuts the steps behind the last that every daemon knows: they would show a fall in
// rates that did not happen.
func (s *Series) cutAt(end int64) {
	n := int((end-s.From)/int64(s.Step)) + 1
	for _, column := range s.columns() {
		if n = max(n, 1); n < len(*column) {
			*column = (*column)[:n]
			s.Last = s.Step
		}
	}
}

func (l *Live) addRules(rows []RuleRow) {
	byName := map[string]*RuleRow{}
	for i := range l.Rules {
		byName[l.Rules[i].Name] = &l.Rules[i]
	}
	var fresh []RuleRow
	for _, row := range rows {
		mine, theirs := byName[row.Name], row.Permits
		if mine == nil {
			row.Decisions, row.DeniedOrShadowed = slices.Clone(row.Decisions), slices.Clone(row.DeniedOrShadowed)
			if theirs != nil {
				row.Permits = new(*theirs)
			}
			fresh = append(fresh, row)
			continue
		}
		mine.Totals.add(row.Totals)
		mine.Counts.add(row.Counts)
		mine.Rate += row.Rate
		if mine.Permits != nil && theirs != nil {
			mine.Permits.add(theirs)
		}
		mine.setShares()
		addNumbers(mine.Decisions, row.Decisions)
		addNumbers(mine.DeniedOrShadowed, row.DeniedOrShadowed)
	}
	l.Rules = append(l.Rules, fresh...)
}

func addNumbers(to, from []uint64) {
	for i := range min(len(to), len(from)) {
		to[i] += from[i]
	}
}

func (l *Live) addListeners(all []Listener, latency map[string][]uint64, bounds []float64) {
	for _, theirs := range all {
		i := slices.IndexFunc(l.Listeners, func(mine Listener) bool { return mine.Name == theirs.Name })
		if i < 0 {
			l.Listeners = append(l.Listeners, Listener{Name: theirs.Name})
			i = len(l.Listeners) - 1
		}
		mine := &l.Listeners[i]
		mine.Connections += theirs.Connections
		mine.Refused += theirs.Refused
		if buckets := latency[theirs.Name]; len(buckets) == len(bounds)+1 {
			sums := slices.Clone(buckets)
			addNumbers(sums, mine.buckets)
			mine.setLatency(bounds, sums)
		}
	}
}

// add adds what another daemon knows of the same Redis. Each of them notices a loss of
// state, so it counts once.
func (s *Store) add(daemon string, other *Store) {
	s.Errors += other.Errors
	s.Refusals += other.Refusals
	s.Degraded = s.Degraded || other.Degraded
	for _, reason := range other.Reasons {
		s.Reasons = append(s.Reasons, daemon+": "+reason)
	}
	for i, own := range s.StateLosses {
		for _, theirs := range other.StateLosses {
			if theirs.Reason == own.Reason {
				s.StateLosses[i].Count = max(own.Count, theirs.Count)
			}
		}
	}
}

// mergeTop returns one list of the top keys of this daemon and others.
func mergeTop(own topkeys.Summary, peers []peer, by string, rule *string) topkeys.Summary {
	parts := []topkeys.Summary{own}
	for _, p := range peers {
		if p.summary == nil {
			continue
		}
		top := p.summary.Top[by]
		theirs := top.summary()
		if theirs.Since.IsZero() { // its --top-keys is 0
			continue
		}
		if rule != nil {
			theirs.Entries = slices.DeleteFunc(theirs.Entries, func(e topkeys.Entry) bool { return e.Rule != *rule })
		}
		parts = append(parts, theirs)
	}
	return topkeys.Merge(parts...)
}
