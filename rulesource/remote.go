package rulesource

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/rules"
)

// A protocol is how the rules on one kind of server are fetched.
type protocol interface {
	// fetch returns the rules and their version. With the version of the last fetch it waits,
	// for [holdTime] at most, until there may be another. No files mean that
	// there is no other.
	fetch(ctx context.Context, c *client, version string) (files []rules.File, next string, err error)
}

// A remote is a source on a server.
type remote struct {
	name     string // the URL without its query
	id       [sha256.Size]byte
	protocol protocol
	client   *client
	o        Options
	pause    time.Duration // the least time between two fetches

	version  string
	used     [sha256.Size]byte // content that was loaded last, good or bad
	failures int               // of fetches, in a row
	reported time.Time         // when use was called with a failure; zero if the last fetch succeeded
	loaded   []rules.File      // by Load; nil once they are kept
	started  error             // why Load returned kept rules

	mu     sync.Mutex
	wake   context.CancelFunc // ends what Watch waits for
	reload bool
}

const (
	minBackoff     = 500 * time.Millisecond
	reportInterval = 10 * time.Minute // between two reports of one outage
)

func newRemote(source string, l *location, p protocol, o *Options) *remote {
	r := &remote{protocol: p, client: newClient(l, o.Credentials), o: *o, id: sha256.Sum256([]byte(source))}
	_, host, _ := strings.Cut(l.servers[0], "://")
	r.name = l.scheme + "://" + host + escape(l.path)
	r.o.Poll = defaults.Or(r.o.Poll, 10*time.Second)
	r.pause = r.o.Poll
	if l.waits {
		r.pause = min(time.Second, r.o.Poll) // so that a version that flaps costs no more
	}
	return r
}

// String returns the URL without its parameters, which may be secret.
func (r *remote) String() string { return r.name }

// Load fetches the rules. If no server has any, or they are wrong, it returns those that were kept.
func (r *remote) Load(ctx context.Context) (*rules.Set, error) {
	set, err := r.loadNew(ctx)
	for range len(r.client.servers) - 1 {
		if err == nil || errors.As(err, new(rules.Errors)) {
			break
		}
		r.client.fail()
		set, err = r.loadNew(ctx)
	}
	if err == nil {
		return set, nil
	}
	if r.o.Keep == "" || ctx.Err() != nil {
		return nil, err
	}
	kept, notKept := r.restore()
	if notKept != nil {
		return nil, fmt.Errorf("%w; %w", err, notKept)
	}
	r.started = fmt.Errorf("started with the rules of the last run: %w", err)
	return kept, nil
}

// fetch adds the name of the source to errors, and leaves out secrets.
func (r *remote) fetch(ctx context.Context, version string) ([]rules.File, string, error) {
	r.client.forget()
	files, next, err := r.protocol.fetch(ctx, r.client, version)
	if r.client.token != "" && hasStatus(err, http.StatusUnauthorized, http.StatusForbidden) { // it has expired
		r.client.token = ""
		files, next, err = r.protocol.fetch(ctx, r.client, version)
	}
	if err == nil {
		err = r.client.checkRepeats(files)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", r.name, r.client.hide(err))
	}
	for i := range files {
		files[i].Name = cmp.Or(files[i].Name, r.name)
	}
	return files, next, nil
}

// loadNew fetches rules.
func (r *remote) loadNew(ctx context.Context) (*rules.Set, error) {
	files, version, err := r.fetch(ctx, "")
	if err != nil {
		return nil, err
	}
	set, err := r.parse(files)
	if err == nil {
		r.version, r.used, r.loaded = version, contentOf(files), files
	}
	return set, err
}

func (r *remote) parse(files []rules.File) (*rules.Set, error) {
	parse := rules.Parse
	if r.o.MergeDomains {
		parse = rules.ParseMerged
	}
	set, err := parse(files...)
	return set, r.client.hide(err)
}

// Watch implements [rules.Provider]. It is called when those of Load are in use, so it keeps them.
func (r *remote) Watch(ctx context.Context, use rules.Use) {
	if r.loaded != nil {
		r.keep(r.loaded)
		r.loaded = nil
	}
	if r.started != nil {
		r.report(use, r.started)
	}
	for ctx.Err() == nil {
		began := time.Now()
		waiting, reload := r.wait(ctx)
		if reload {
			r.version, r.used = "", [sha256.Size]byte{}
		}
		files, version, err := r.fetch(waiting, r.version)
		switch {
		case ctx.Err() != nil:
			return
		case waiting.Err() != nil: // a reload
		case err != nil:
			r.failed(waiting, use, err)
		default:
			r.use(use, files, version)
			_ = monotime.Sleep(waiting, r.pause-time.Since(began))
		}
	}
}

// wait returns a context that ends with ctx and with [remote.Reload], and whether that was called.
func (r *remote) wait(ctx context.Context) (waiting context.Context, reload bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake != nil {
		r.wake()
	}
	waiting, r.wake = context.WithCancel(ctx)
	reload, r.reload = r.reload, false
	return waiting, reload
}

// Reload makes Watch fetch and use the rules now, whether or not they have changed.
func (r *remote) Reload() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reload = true; r.wake != nil {
		r.wake()
	}
}

// use hands over files that are new, and all after a failure, so that the caller knows that it is over.
func (r *remote) use(use rules.Use, files []rules.File, version string) {
	r.failures, r.version = 0, version
	if len(files) == 0 {
		return
	}
	content := contentOf(files)
	if content == r.used && r.reported.IsZero() {
		return
	}
	r.used, r.reported = content, time.Time{}
	if use(r.parse(files)) == nil {
		r.keep(files)
	}
}

// failed reports a failure, unless it is the first: a server that restarts breaks its long polls.
func (r *remote) failed(ctx context.Context, use rules.Use, err error) {
	r.client.fail()
	if r.failures++; r.failures > 1 {
		r.report(use, err)
	}
	d := min(minBackoff<<min(r.failures-1, 20), r.o.Poll)
	_ = monotime.Sleep(ctx, d/2+rand.N(d/2+1)) // not all programs at once
}

// report hands over why there are no new rules, now and then. The next fetch is whole.
func (r *remote) report(use rules.Use, err error) {
	r.version, r.started = "", nil
	if r.reported.IsZero() || time.Since(r.reported) > reportInterval {
		r.reported = time.Now()
		_ = use(nil, err) // the caller reports it
	}
}

// contentOf identifies the text of files and their names.
func contentOf(files []rules.File) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		h.Write(fmt.Appendf(nil, "%d %d %s", len(f.Name), len(f.Text), f.Name))
		h.Write(f.Text)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
