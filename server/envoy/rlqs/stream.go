package rlqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// A streamError ends a stream.
type streamError struct {
	code    codes.Code
	problem string
	reason  requestlog.Reason // "" if the proxy is not at fault
}

func (e *streamError) Error() string { return e.problem }

// GRPCStatus makes it the status of the stream.
func (e *streamError) GRPCStatus() *status.Status { return status.New(e.code, e.problem) }

var (
	errNoDomain     = &streamError{codes.InvalidArgument, "the first report must have a domain", requestlog.Descriptors}
	errLongDomain   = &streamError{codes.InvalidArgument, "the domain is too long", requestlog.TooLarge}
	errOtherDomain  = &streamError{codes.InvalidArgument, "the domain of a stream cannot change: open another stream", requestlog.Descriptors}
	errNoBucketID   = &streamError{codes.InvalidArgument, "a bucket has no ID", requestlog.Descriptors}
	errTooMany      = &streamError{codes.ResourceExhausted, "too many reports: want a longer reporting interval", requestlog.TooLarge}
	errNotReading   = &streamError{codes.ResourceExhausted, "the proxy does not read its assignments", requestlog.TooLarge}
	errTooManyOpen  = &streamError{codes.ResourceExhausted, "too many streams", ""}
	errSilent       = &streamError{codes.Unavailable, "no report for too long: open another stream", ""}
	errShuttingDown = &streamError{codes.Unavailable, "the server is shutting down", ""}
	errPanicked     = &streamError{codes.Internal, "internal error", ""}
	errClosed       = &streamError{codes.Canceled, "the stream has ended", ""}
)

const (
	// maxBucketBytes is the longest ID of a bucket, and maxStreamBytes bounds all IDs of
	// a stream. Proxies make IDs from headers, which their clients choose, and report
	// all buckets in one message, which gRPC bounds.
	maxBucketBytes = 4 << 10
	maxStreamBytes = 160 << 10

	// reportBytes is what a bucket adds to a report besides its ID.
	reportBytes = 48

	// maxReports is how many reports about single buckets a stream may send in a second.
	maxReports = 20_000

	// maxActions is how many actions are sent in one message, and maxOutbox how many wait
	// for it, besides those of members. These have IDs of any length, because they also
	// abandon buckets whose IDs are too long: maxOutboxBytes bounds what waits of them.
	maxActions     = 256
	maxOutbox      = 4096
	maxOutboxBytes = 1 << 20

	// sendTimeout is how long one message may wait for a proxy to read.
	sendTimeout = 30 * time.Second
)

// A stream is a proxy that is connected. All but its channels is guarded by the service's
// lock.
type stream struct {
	domain  string
	members map[string]*member // by the key of their bucket
	bytes   int                // of the IDs of all members
	outbox  []action
	waiting int           // bytes of IDs in the outbox, besides those of members
	ready   chan struct{} // has an item if the outbox has
	failed  chan error    // why the stream ends; takes one error

	sending time.Time // when the message being sent was begun; zero if there is none
	second  time.Time // the begin of the second that reports counts
	reports int
	closed  bool
	heard   time.Time // when it was opened, or sent its last report
	from    string    // the address of the proxy
	client  *client   // nil if the proxy is on this machine
}

// A client is an address that proxies connect from. One may have at most half of all streams,
// and of all buckets, so that others are served whatever it does.
type client struct{ streams, members int }

func bucketBytes(key string) int { return len(key) + reportBytes }

// open adds a stream.
func (s *Service) open(from string) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping:
		return nil, errShuttingDown
	case len(s.streams) >= s.options.MaxStreams:
		return nil, errTooManyOpen
	}
	c := s.clientFrom(from)
	if c != nil && c.streams >= half(s.options.MaxStreams) {
		return nil, errTooManyOpen
	}
	st := &stream{
		members: map[string]*member{}, ready: make(chan struct{}, 1), failed: make(chan error, 1),
		heard: s.options.Now(), from: from, client: c,
	}
	s.streams[st] = true
	if c != nil {
		c.streams++
	}
	return st, nil
}

// half returns what one client may have of a number.
func half(n int) int { return max(n/2, 1) }

// clientFrom returns the client at an address, or nil if it is on this machine, where a proxy may
// forward for many.
func (s *Service) clientFrom(from string) *client {
	at, err := netip.ParseAddrPort(from)
	if err != nil || at.Addr().Unmap().IsLoopback() {
		return nil
	}
	key := s.addresses.Key(from, nil)
	c := s.clients[key]
	if c == nil {
		c = &client{}
		s.clients[key] = c
	}
	return c
}

// close removes a stream. What the proxy holds was paid for, and expires by itself.
func (s *Service) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.closed = true
	for _, m := range st.members {
		s.removeMember(m)
	}
	delete(s.streams, st)
	if c := st.client; c != nil {
		if c.streams--; c.streams == 0 {
			delete(s.clients, s.addresses.Key(st.from, nil))
		}
	}
}

// Stop ends all streams, and refuses new ones.
func (s *Service) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for st := range s.streams {
		st.fail(errShuttingDown)
	}
}

// failStuck ends the streams that do not read, and those without reports: gRPC does not count a
// connection with a stream as idle.
func (s *Service) failStuck(now time.Time) {
	for st := range s.streams {
		if !st.sending.IsZero() && now.Sub(st.sending) > sendTimeout {
			st.fail(errNotReading)
		}
		if now.Sub(st.heard) > idleFor {
			st.fail(errSilent)
		}
	}
}

// fail ends the stream. The first error counts.
func (st *stream) fail(err error) {
	select {
	case st.failed <- err:
	default:
	}
}

// enqueue adds an action to send. A member has at most one.
func (st *stream) enqueue(a action) {
	if a.member != nil {
		a.member.pending = true
	} else if len(st.outbox) >= maxOutbox || st.waiting+idBytes(a.id) > maxOutboxBytes {
		return // the proxy reports the bucket again
	}
	st.waiting += idBytes(a.id)
	st.outbox = append(st.outbox, a)
	select {
	case st.ready <- struct{}{}:
	default:
	}
}

// idBytes returns the bytes of an ID that an action has of its own. Those of members have none.
func idBytes(id []rules.Entry) (n int) {
	for i := range id {
		n += len(id[i].Key) + len(id[i].Value)
	}
	return n
}

// StreamRateLimitQuotas serves one proxy.
func (s *Service) StreamRateLimitQuotas(g pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	st, err := s.open(addressOf(g.Context()))
	if err != nil {
		return err
	}
	defer s.close(st)
	go func() { st.fail(s.receive(g, st)) }()
	go func() { st.fail(s.send(g, st)) }()
	err = <-st.failed
	if errors.Is(err, io.EOF) {
		return nil // the proxy has closed the stream
	}
	if wrong, ok := errors.AsType[*streamError](err); ok && wrong.reason != "" {
		s.options.Requests.Invalid(wrong.reason, wrong.problem, st.from)
	}
	return err
}

// receive books reports until the stream ends. A panic ends the stream, and not the process.
func (s *Service) receive(g pb.RateLimitQuotaService_StreamRateLimitQuotasServer, st *stream) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.options.Requests.Panicked(p, st.from)
			err = errPanicked
		}
	}()
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if err := s.report(st, m); err != nil {
			return err
		}
	}
}

// send sends what is in the outbox until the stream ends. It blocks while the proxy does not read.
func (s *Service) send(g pb.RateLimitQuotaService_StreamRateLimitQuotasServer, st *stream) error {
	for {
		select {
		case <-g.Context().Done():
			return g.Context().Err()
		case <-st.ready:
		}
		for batch := s.nextBatch(st); len(batch) > 0; batch = s.nextBatch(st) {
			if err := g.Send(newResponse(batch)); err != nil {
				return err
			}
			s.finishBatch(st, batch)
		}
	}
}

// nextBatch takes actions out of the outbox.
func (s *Service) nextBatch(st *stream) []action {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Now()
	st.outbox = slices.DeleteFunc(st.outbox, func(a action) bool { return a.dropLate(now) })
	n := min(len(st.outbox), maxActions)
	batch := st.outbox[:n:n]
	for i := range batch {
		st.waiting -= idBytes(batch[i].id)
	}
	if st.outbox = st.outbox[n:]; len(st.outbox) == 0 {
		st.outbox = nil
	}
	if n > 0 {
		st.sending = now
	}
	return batch
}

// dropLate reports whether it is too late to extend a lease. Then the member has none any more, and
// gets another.
func (a *action) dropLate(now time.Time) bool {
	if a.until.IsZero() || !now.After(a.until) {
		return false
	}
	a.member.lease, a.member.pending = lease{}, false
	return true
}

// finishBatch notes that actions were sent.
func (s *Service) finishBatch(st *stream, batch []action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.sending = time.Time{}
	for i := range batch {
		if m := batch[i].member; m != nil {
			m.pending = false
		}
	}
}

func newResponse(batch []action) *pb.RateLimitQuotaResponse {
	r := &pb.RateLimitQuotaResponse{}
	for i := range batch {
		r.BucketAction = append(r.BucketAction, batch[i].message())
	}
	return r
}

// report books the reports of one message. An error ends the stream, and then nothing of
// the message is booked. A stream may end while its last message waits for the lock: a member
// that were added to it then would stay for ever, since nothing sends it its assignments.
func (s *Service) report(st *stream, m *pb.RateLimitQuotaUsageReports) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.closed {
		return errClosed
	}
	now := s.options.Now()
	if err := st.check(now, m); err != nil {
		return err
	}
	st.domain = cmp.Or(st.domain, m.GetDomain())
	st.heard = now
	for _, usage := range m.GetBucketQuotaUsages() {
		s.reportBucket(st, now, usage)
	}
	return nil
}

// check returns an error if a message makes no sense.
func (st *stream) check(now time.Time, m *pb.RateLimitQuotaUsageReports) error {
	switch domain := m.GetDomain(); {
	case st.domain == "" && domain == "":
		return errNoDomain
	case len(domain) > maxBucketBytes:
		return errLongDomain
	case st.domain != "" && domain != "" && domain != st.domain:
		return errOtherDomain
	}
	if now.Sub(st.second) >= time.Second {
		st.second, st.reports = now, 0
	}
	if st.reports += 1 + len(m.GetBucketQuotaUsages()); st.reports > maxReports {
		return errTooMany
	}
	for _, usage := range m.GetBucketQuotaUsages() {
		if len(usage.GetBucketId().GetBucket()) == 0 {
			return errNoBucketID
		}
	}
	return nil
}

// reportBucket books the report about one bucket.
func (s *Service) reportBucket(st *stream, now time.Time, usage *pb.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	entries := entriesOf(usage.GetBucketId().GetBucket())
	key := bucketKey(st.domain, entries)
	m := st.members[key]
	if m == nil {
		if err := s.refuseMember(st, key, len(entries)); err != nil {
			s.options.Requests.Invalid(requestlog.TooLarge, err.Error(), st.from)
			st.enqueue(action{kind: abandon, id: entries})
			return
		}
		m = s.addMember(st, key, &bucket{key: key, domain: st.domain, entries: entries})
	}
	allowed, denied := usage.GetNumRequestsAllowed(), usage.GetNumRequestsDenied()
	m.demand.report(now, allowed, denied)
	m.lease.report(allowed)
	s.count(now, m.bucket, allowed, denied)
	if b := m.bucket; !b.touched {
		b.touched = true
		s.touched = append(s.touched, b)
	}
}

// count counts the requests of a report, except those of a bucket that is new: what limits it
// is not known yet, and its proxy decided without an assignment.
func (s *Service) count(now time.Time, b *bucket, allowed, denied uint64) {
	switch {
	case !b.found:
	case b.target.Shadow:
		b.shadowed = min(b.shadowed+min(allowed, maxShadowed), maxShadowed)
	default:
		b.target.CountReported(allowed, denied, !now.Before(b.excusedTill))
		if allowed+denied > 0 {
			b.target.ReportUnmatched(b.domain, b.entries)
		}
	}
}

// maxShadowed bounds what one step charges to a rule in shadow mode.
const maxShadowed = 1 << 32

// refuseMember returns an error if a stream cannot have another bucket.
func (s *Service) refuseMember(st *stream, key string, entries int) error {
	switch {
	case len(key) > maxBucketBytes:
		return fmt.Errorf("a bucket's ID has %d bytes: want at most %d", len(key), maxBucketBytes)
	case entries > s.engine.MaxEntries():
		return fmt.Errorf("a bucket's ID has %d entries: want at most %d", entries, s.engine.MaxEntries())
	case len(st.members) >= s.options.MaxBuckets || st.bytes+bucketBytes(key) > maxStreamBytes:
		return fmt.Errorf("a proxy has more than %d buckets, or %d bytes of their IDs", s.options.MaxBuckets, maxStreamBytes)
	case s.members >= s.options.MaxMembers:
		return fmt.Errorf("all proxies have more than %d buckets", s.options.MaxMembers)
	case st.client != nil && st.client.members >= half(s.options.MaxMembers):
		return fmt.Errorf("all proxies at one address have more than %d buckets", half(s.options.MaxMembers))
	}
	return nil
}

// addMember adds a proxy to a bucket, which is the given one if there is none.
func (s *Service) addMember(st *stream, key string, b *bucket) *member {
	if known := s.buckets[key]; known != nil {
		b = known
	}
	m := &member{stream: st, bucket: b}
	s.buckets[key] = b
	b.members = append(b.members, m)
	st.members[key] = m
	st.bytes += bucketBytes(key)
	s.members++
	if st.client != nil {
		st.client.members++
	}
	select {
	case s.wake <- struct{}{}: // a new bucket does not wait for the tick
	default:
	}
	return m
}

// addressOf returns where a stream comes from.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
