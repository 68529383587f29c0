package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// A Charge says of which limiter a request takes, under which key, how much.
type Charge struct {
	// Limiter is what the request takes of. Required.
	Limiter *penstock.Limiter

	// Key says whom to charge. A request for which it returns "" is charged to
	// its client's address. Default: that address. Who comes through a socket
	// of Unix has none: nothing can be decided about such a request without a
	// key, and it passes unless Unavailable says otherwise.
	Key func(*http.Request) string

	// Cost says how much to take before the request is served. Nothing is
	// taken for 0, and such a request always passes. Less than 0 is refused
	// with status 400, so that no request can be written that undoes limits or
	// passes by them: mind that ContentLength is -1 for a body of unknown
	// length. Default: 1.
	Cost func(*http.Request) int64

	// After says what the request cost, once it was served: less than was
	// taken is given back, more is taken as far as there is any left, and
	// [penstock.Reset] makes the key as good as new. Nothing is given back that
	// has come back by itself meanwhile: after a request that took longer than
	// the window it was taken in, or than its bucket took to fill again, there
	// is nothing left to settle. A fixed window's bound holds exactly. Buckets
	// exceed theirs by no more than what requests that were under way at once
	// gave back; and so do the other windows, which take off their newest
	// units, whoever took those. Default: what was taken.
	After func(Response) int64
}

// Options say what [Protect] does. The zero Options charge each request one unit
// of its client's address.
type Options struct {
	// Key, Cost and After are those of the first limiter's [Charge].
	Key   func(*http.Request) string
	Cost  func(*http.Request) int64
	After func(Response) int64

	// Additional are further limiters. A request that one of them denies takes
	// nothing of the others. Limiters of one store are decided as one; of
	// several stores, one store after the other, those within this process
	// first. Retry-After is that of the one that denies for longest, among
	// those that were asked: a store that is far away is spared what another
	// has denied already, and denies when its turn comes. Optional.
	Additional []Charge

	// Headers says how clients are told how they stand. Default: [IETF].
	Headers Form

	// Skip says which requests are not limited at all. Default: none.
	Skip func(*http.Request) bool

	// Shadow tries the limits out: every request passes and clients are told
	// nothing, but it is called for those that would have been denied.
	// Default: limits are enforced.
	Shadow func(*http.Request, []Answer)

	// Denied answers a request that was denied. Header fields are set already.
	// Default: status 429 and a [QuotaExceeded] problem.
	Denied func(http.ResponseWriter, *http.Request, []Answer)

	// Unavailable answers a request that nothing could be decided about, such
	// as [Refuse] does: because the store is away, or because the client
	// cannot be told from others. What limiters of other stores had granted is
	// given back before. Default: the request passes, unless its client has
	// left, and is charged to those limiters that could decide: keep one in
	// memory, and it holds while a store is away.
	Unavailable func(http.ResponseWriter, *http.Request, error)

	// OnError is told of each such failure, of costs below 0, and of failures
	// to give back. Default: nobody is told.
	OnError func(*http.Request, error)

	// Proxies are the addresses of those in front of this server whose word
	// about their clients' addresses is taken: see [PrivateNetworks]. Without
	// them, everybody who comes through a proxy is one client. Default: none.
	Proxies []netip.Prefix

	// AddressHeader is the field by which proxies say whom they forward for:
	// a list of addresses to which each has added the one it was connected
	// from. Forwarded, which is no such list, is not understood. Default:
	// X-Forwarded-For.
	AddressHeader string

	// IPv6Prefix is how many bits of an IPv6 address tell clients apart. Who
	// has one address usually has a whole prefix. Addresses that were made from
	// one of IPv4, by 6to4, Teredo or NAT64, are known by that one. Default:
	// 64.
	IPv6Prefix int
}

// Protect returns middleware that charges each request to its client, and refuses
// those for which not enough is left. If a limiter says that a request should be
// held, as that of a leaky bucket does, it is held.
//
// State belongs to the limiter, not to the middleware: where two protections are
// to be counted apart, give their limits names. The limiters must not be nil.
func Protect(lim *penstock.Limiter, o *Options) func(http.Handler) http.Handler {
	if o == nil {
		o = &Options{}
	}
	p := newProtection(lim, o)
	return func(next http.Handler) http.Handler { return &protected{p, next} }
}

// A protection is middleware before it knows what it protects.
type protection struct {
	Options
	charges []Charge
	names   []string // of policies
	bodies  [][]byte // of problems, where one policy denies
	set     *charge.Set
	settles bool
	address func(*http.Request) string // of the client
}

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	p := &protection{Options: *o, address: ClientIP(o)}
	given := append([]Charge{{Limiter: lim, Key: o.Key, Cost: o.Cost, After: o.After}}, o.Additional...)
	limiters := make([]*penstock.Limiter, len(given))
	for i, c := range given {
		limiters[i] = c.Limiter
	}
	set, order := charge.NewSet(limiters)
	p.set = set
	for _, i := range order {
		p.add(given[i])
	}
	return p
}

// add adds a charge, and works out what can be told of it beforehand.
func (p *protection) add(c Charge) {
	limit := c.Limiter.Limit()
	name := (&Answer{Limit: limit}).policy()
	if limit.Name == "" && len(p.Additional) > 0 {
		name = limit.String()
	}
	p.charges, p.names = append(p.charges, c), append(p.names, name)
	p.bodies = append(p.bodies, QuotaExceeded([]Answer{{Policy: name}}).body())
	p.settles = p.settles || c.After != nil
}

// protected is a handler behind middleware.
type protected struct {
	*protection
	next http.Handler
}

// few is how many charges need no memory of their own.
const few = 4

// ServeHTTP serves the request, or says why not.
func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Skip != nil && p.Skip(r) {
		p.next.ServeHTTP(w, r)
		return
	}
	var room [few]charge.Part
	parts := append(room[:0], make([]charge.Part, len(p.charges))...)
	since := p.now()
	decided, allowed, err := p.take(r, parts)
	if allowed && err != nil {
		p.fail(w, r, parts[:decided], since, err)
		return
	}
	p.report(r, err) // of a denial that could not give back what others had granted
	switch {
	case p.Shadow != nil && !allowed:
		p.Shadow(r, p.answers(parts[:decided]))
		p.next.ServeHTTP(w, r)
	case p.Shadow != nil:
		p.serve(w, r, parts, since)
	case !allowed:
		p.deny(w, r, parts[:decided])
	default:
		p.tell(w.Header(), parts)
		p.pass(w, r, parts, since)
	}
}

// pass serves a request when the limits want it to be.
func (p *protected) pass(w http.ResponseWriter, r *http.Request, parts []charge.Part, since time.Time) {
	if err := p.set.Hold(r.Context(), parts); err != nil {
		ServiceUnavailable(w, r, err)
		return
	}
	p.serve(w, r, parts, since)
}

// now returns the time, which matters only if something is to be settled later, or
// given back because one of several failed.
func (p *protection) now() (t time.Time) {
	if p.settles || len(p.charges) > 1 {
		t = time.Now()
	}
	return t
}

// take works out what the request costs, and whom, and takes it.
func (p *protection) take(r *http.Request, parts []charge.Part) (decided int, allowed bool, err error) {
	for i := range p.charges {
		c := &p.charges[i]
		if parts[i].Key = p.keyOf(c, r); parts[i].Key == "" {
			return 0, true, errNobody
		}
		parts[i].Cost = 1
		if c.Cost != nil {
			parts[i].Cost = c.Cost(r)
		}
	}
	return p.set.Take(r.Context(), parts)
}

// errNobody means that there is no telling whom to charge. To charge everybody
// together would let one of them shut out the rest.
var errNobody = fmt.Errorf("httplimit: %w: neither a key nor the client's address is known", penstock.ErrBadKey)

// keyOf returns whom to charge. Addresses that stand in for a missing key begin
// with a byte that no key may begin with, so that nobody can pose as one of them.
func (p *protection) keyOf(c *Charge, r *http.Request) string {
	if c.Key == nil {
		return p.address(r)
	}
	if key := c.Key(r); key != "" && key[0] != 0 {
		return key
	}
	if addr := p.address(r); addr != "" {
		return "\x00" + addr
	}
	return ""
}

// fail deals with a request that not all limits decided about. If it passes, it is
// charged to those that did: what shields this process must not fail with a store
// that is far away. One whose client left meanwhile is not served: to send requests
// and take them back at once would otherwise be a way around the limits of a store
// that minds.
func (p *protected) fail(w http.ResponseWriter, r *http.Request, granted []charge.Part, since time.Time, err error) {
	p.report(r, err)
	switch {
	case p.Shadow != nil:
		p.serve(w, r, granted, since)
		return
	case p.Unavailable == nil && r.Context().Err() == nil && !errors.Is(err, penstock.ErrBadCost):
		p.pass(w, r, granted, since)
		return
	}
	p.report(r, p.set.Refund(r.Context(), granted, since))
	switch {
	case errors.Is(err, penstock.ErrBadCost):
		WriteProblem(w, Problem{Status: http.StatusBadRequest, Detail: "there is no telling what the request costs"})
	case p.Unavailable == nil || r.Context().Err() != nil:
		ServiceUnavailable(w, r, err)
	default:
		p.Unavailable(w, r, err)
	}
}

func (p *protection) report(r *http.Request, err error) {
	if err != nil && p.OnError != nil {
		p.OnError(r, err)
	}
}

// ServiceUnavailable, as [Options.Unavailable], answers with status 503 and a problem of type
// [TypeReducedCapacity].
func ServiceUnavailable(w http.ResponseWriter, _ *http.Request, _ error) {
	WriteProblem(w, Problem{
		Type:   TypeReducedCapacity,
		Title:  "Temporary Reduced Capacity",
		Status: http.StatusServiceUnavailable,
	})
}

// tell tells the client how it stands.
func (p *protection) tell(h http.Header, parts []charge.Part) {
	if p.Headers >= NoHeaders {
		return
	}
	var room [few]Answer
	p.Headers.SetHeaders(h, p.appendAnswers(room[:0], parts))
}

// deny answers a request that was denied.
func (p *protection) deny(w http.ResponseWriter, r *http.Request, parts []charge.Part) {
	p.tell(w.Header(), parts)
	if p.Denied != nil {
		p.Denied(w, r, p.answers(parts))
		return
	}
	at := -1
	for i := range parts {
		if parts[i].Decision.Allowed {
			continue
		}
		if at >= 0 {
			WriteProblem(w, QuotaExceeded(p.answers(parts)))
			return
		}
		at = i
	}
	writeBody(w, http.StatusTooManyRequests, p.bodies[at])
}

// answers returns what was decided, for others to keep.
func (p *protection) answers(parts []charge.Part) []Answer { return p.appendAnswers(nil, parts) }

func (p *protection) appendAnswers(answers []Answer, parts []charge.Part) []Answer {
	for i := range parts {
		answers = append(answers, Answer{
			Policy: p.names[i], Limit: p.charges[i].Limiter.Limit(), Decision: parts[i].Decision,
		})
	}
	return answers
}
