package charge

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
)

// A Guard decides whether requests of type R may go on, for middleware of any transport. The
// middleware answers those that may not. It keeps an E beside each limiter.
type Guard[R, E any] struct {
	Package      string // of the middleware, for messages
	Charges      []Charge[R]
	Rules        *Rules[R]      // in place of charges, unless it is nil
	Address      func(R) string // of the client, or ""
	Unnamed      string         // the name of an only limit that has none; by default its text
	PermitsAlone error          // means that a concurrent limit is among others, or is settled
	NoPermits    bool           // and this that it is an error alone too: nothing tells when a request has ended
	Extra        func(i int, name string) E
	Shadow       bool // nothing is enforced

	// As in the options of the middleware. Each may be nil.
	Skip        func(R) bool
	Unavailable func(R, error) error // nil means that the request passes
	OnError     func(R, error)

	unknownClient error
	errorLog      *lograte.Sampler
	lists[R, E]
}

// A Passage is what a [Guard] decided about a request.
type Passage[R, E any] struct {
	List    *List[R, E]     // nil if the request was skipped
	Since   time.Time       // before it was charged
	Denied  bool            // a limit denies the request
	Shown   bool            // the client is told what remains
	Context context.Context // that the request goes on with
	Release func()          // to call when the request has ended, unless it is nil

	ruled   *ruled // unless there are no rules
	decided int
	room    [4]Part // no slice of it is kept, so that a Passage stays on the stack
	more    []Part
}

// Parts returns what was decided. If the request goes on, that is what it is charged.
func (p *Passage[R, E]) Parts() []Part { return p.all()[:p.decided] }

// all returns a part for each limiter of the list.
func (p *Passage[R, E]) all() []Part {
	n := len(p.List.Items)
	if n <= len(p.room) {
		return p.room[:n]
	}
	if p.more == nil {
		p.more = make([]Part, n)
	}
	return p.more
}

// Enter decides a request. It returns when the request may go on, after its delay; or when it
// must not, because it is denied, or because of an error.
func (g *Guard[R, E]) Enter(ctx context.Context, r R, p *Passage[R, E]) error {
	if p.Context = ctx; g.Skip != nil && g.Skip(r) {
		return nil
	}
	if g.Rules != nil {
		return g.enterByRules(r, p)
	}
	if p.List = g.listFor(r); p.List.permits {
		return g.acquire(r, p)
	}
	p.Since = p.List.now()
	decided, allowed, err := p.List.take(ctx, r, p)
	if p.decided = decided; allowed && err != nil {
		return g.fail(r, p, err)
	}
	g.Report(ctx, r, err) // a denial whose refund failed
	return g.conclude(r, p, allowed)
}

// acquire acquires the permit of a request.
func (g *Guard[R, E]) acquire(r R, p *Passage[R, E]) error {
	if g.NoPermits || len(p.List.Items) > 1 || p.List.Settles {
		g.Report(p.Context, r, g.PermitsAlone)
		return g.PermitsAlone
	}
	within, release, part, err := p.List.acquire(p.Context, r)
	p.Release, p.room[0] = release, part
	switch {
	case err != nil:
		return g.fail(r, p, err)
	case release != nil && !g.Shadow:
		p.Context = within
	case part.Decision.Allowed: // it costs nothing, or a shadow enforces nothing, also if the permit is lost
		return nil
	}
	p.decided = 1
	return g.conclude(r, p, part.Decision.Allowed)
}

// conclude enforces a decision, unless the guard is a shadow. What a denied request was charged has been
// refunded.
func (g *Guard[R, E]) conclude(r R, p *Passage[R, E], allowed bool) error {
	p.Denied, p.Shown = !allowed, !g.Shadow
	if !allowed || g.Shadow {
		return nil
	}
	return g.await(r, p)
}

// await waits for the delay of a request.
func (g *Guard[R, E]) await(r R, p *Passage[R, E]) error {
	if p.ruled != nil {
		return g.awaitByRules(r, p)
	}
	passed, err := p.List.AwaitDelay(p.Context, p.Parts())
	if g.Report(p.Context, r, err); !passed {
		return p.Context.Err()
	}
	return nil
}

// fail handles a request that not all limiters could decide. If it goes on, it stays charged to
// those that could: a limit in memory must not fail with a remote store.
func (g *Guard[R, E]) fail(r R, p *Passage[R, E], err error) error {
	if g.Report(p.Context, r, err); g.Shadow {
		return nil
	}
	refusal := g.refusal(r, p, err)
	if refusal == nil {
		return g.await(r, p)
	}
	g.Report(p.Context, r, p.List.Refund(p.Context, p.Parts(), p.Since))
	return refusal
}

// refusal returns the error of an undecided request, or nil if it goes on. One that costs nothing
// goes on. One that its client has canceled does not; otherwise sending and canceling requests would
// bypass the limits of a slow store. Nor does one of so many that the store is busy; otherwise sending many
// would bypass them.
func (g *Guard[R, E]) refusal(r R, p *Passage[R, E], err error) error {
	switch {
	case errors.Is(err, penstock.ErrBadCost):
		return err
	case p.Context.Err() != nil:
		return p.Context.Err()
	case !costs(p.all()[p.decided:]) && (p.ruled == nil || !p.ruled.costs()):
		return nil
	case g.Unavailable != nil:
		return g.Unavailable(r, err)
	case errors.Is(err, penstock.ErrBusy):
		return err
	}
	return nil
}

// Report reports an error because of which a request may pass, or be charged too much.
func (g *Guard[R, E]) Report(ctx context.Context, r R, err error) {
	switch {
	case err == nil:
	case g.OnError != nil:
		g.OnError(r, err)
	default:
		g.errorLog.LogError(ctx, err)
	}
}

// AppendAnswers appends what each limit decided about a request. An A is an httplimit.Answer.
func AppendAnswers[A ~struct {
	Policy         string
	Limit          penstock.Limit
	Decision       penstock.Decision
	Cost, KeepFree int64
}, R, E any](answers []A, p *Passage[R, E]) []A {
	for i, part := range p.Parts() {
		item := &p.List.Items[i]
		answers = append(answers, A{Policy: item.Name, Limit: item.Limiter.Limit(), Decision: part.Decision, Cost: part.Cost})
	}
	if p.ruled != nil {
		for _, a := range p.ruled.shown(p.Denied) {
			answers = append(answers, A{Policy: a.Rule, Limit: a.Limit, Decision: a.Decision, Cost: a.Cost, KeepFree: a.KeepFree})
		}
	}
	return answers
}
