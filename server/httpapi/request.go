package httpapi

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// What a request may hold.
const (
	maxBody     = 64 << 10
	maxKey      = 4 << 10 // also of an ID, and of a descriptor's keys and values together
	maxRequests = 64
	maxEntries  = 16
)

// A question is one thing that is asked: about a key under the limit that comes
// with it, or about descriptors by the rules.
type question struct {
	said said
	cost int64

	key      string
	limit    string
	id       string
	atMost   bool
	maxDelay time.Duration

	domain      string
	most        int // descriptors
	descriptors []engine.Descriptor
	costed      []bool // which descriptors have a cost of their own
}

// said is a set of members that were there.
type said uint16

const (
	saidKey said = 1 << iota
	saidKeyBase64
	saidLimit
	saidCost
	saidAtMost
	saidMaxDelay
	saidID
	saidDomain
	saidDescriptors
	saidMode
	saidRequests
	saidEntries
	saidValue

	anyKey  = saidKey | saidKeyBase64
	byLimit = anyKey | saidLimit | saidAtMost | saidMaxDelay | saidID
	byRules = saidDomain | saidDescriptors
	inList  = saidMode | saidRequests

	ofQuestion   = byLimit | byRules | saidCost
	ofDescriptor = saidEntries | saidCost
	ofEntry      = saidKey | saidValue
)

// memberNames are in the order of the bits above.
var memberNames = [...]string{
	"key", "key_base64", "limit", "cost", "at_most", "max_delay", "id",
	"domain", "descriptors", "mode", "requests", "entries", "value",
}

// has reports whether one of the members was there.
func (s said) has(members said) bool { return s&members != 0 }

// first returns the name of one of the members that were there.
func (s said) first(members said) string {
	for i, name := range memberNames {
		if s.has(1 << i & members) {
			return name
		}
	}
	return ""
}

// add notes a member, which must be one of those known here, and new.
func (s *said) add(name string, known said) error {
	for i := range memberNames {
		member := said(1) << i
		if memberNames[i] != name || !known.has(member) {
			continue
		}
		if s.has(member) {
			return &fieldError{problem: fmt.Sprintf("%q is there twice", name)}
		}
		*s |= member
		return nil
	}
	return &fieldError{problem: fmt.Sprintf("%.80q is not known here", name)}
}

// read reads the value of a member.
func (q *question) read(r *jsonReader, name string) (err error) {
	switch name {
	case "key":
		q.key, err = r.key()
	case "key_base64":
		q.key, err = r.keyBase64()
	case "limit":
		q.limit, err = r.string()
	case "cost":
		q.cost, err = r.integer()
	case "at_most":
		q.atMost, err = r.boolean()
	case "max_delay":
		q.maxDelay, err = r.seconds()
	case "id":
		q.id, err = r.shortString()
	case "domain":
		q.domain, err = r.shortString()
	case "descriptors":
		err = r.array(func(i int) error { return q.readDescriptor(r, i) })
	}
	return err
}

func (r *jsonReader) key() (string, error) {
	key, err := r.shortString()
	if err == nil && key == "" {
		err = errNoKey()
	}
	return key, err
}

// keyBase64 reads a key of any bytes.
func (r *jsonReader) keyBase64() (string, error) {
	text, err := r.string()
	if err != nil {
		return "", err
	}
	if len(text) > base64.StdEncoding.EncodedLen(maxKey) {
		return "", errLong(len(text))
	}
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case err != nil:
		return "", &fieldError{problem: "want base64, with padding: " + err.Error(), kind: ProblemBadKey}
	case len(key) == 0:
		return "", errNoKey()
	case len(key) > maxKey:
		return "", errLong(len(key))
	}
	return string(key), nil
}

// shortString reads a string no longer than a key may be. It is a copy: a store
// may keep a key, and must not keep the whole body with it.
func (r *jsonReader) shortString() (string, error) {
	s, err := r.string()
	if err != nil {
		return "", err
	}
	if len(s) > maxKey {
		return "", errLong(len(s))
	}
	return strings.Clone(s), nil
}

func errNoKey() error {
	return &fieldError{problem: "is empty: want who is asking", kind: ProblemBadKey}
}

func errLong(n int) error {
	return &fieldError{problem: fmt.Sprintf("%d bytes long: want at most %d", n, maxKey), kind: ProblemBadKey}
}

func (q *question) readDescriptor(r *jsonReader, i int) error {
	if i == q.most {
		return &fieldError{problem: fmt.Sprintf("want at most %d", q.most)}
	}
	var d engine.Descriptor
	var there said
	err := r.object(func(name string) error {
		err := there.add(name, ofDescriptor)
		switch {
		case err != nil:
		case name == "cost":
			d.Cost, err = r.integer()
		default:
			d.Entries, err = r.entries()
		}
		return err
	})
	if err == nil && len(d.Entries) == 0 {
		err = &fieldError{path: []string{"entries"}, problem: "want at least one entry"}
	}
	q.descriptors = append(q.descriptors, d)
	q.costed = append(q.costed, there.has(saidCost))
	return err
}

// entries reads the entries of a descriptor.
func (r *jsonReader) entries() (entries []rules.Entry, err error) {
	length := 0
	err = r.array(func(i int) error {
		if i == maxEntries {
			return &fieldError{problem: fmt.Sprintf("want at most %d", maxEntries)}
		}
		e, err := r.entry()
		if length += len(e.Key) + len(e.Value); err == nil && length > maxKey {
			err = errLong(length)
		}
		entries = append(entries, e)
		return err
	})
	return entries, err
}

func (r *jsonReader) entry() (e rules.Entry, err error) {
	var there said
	err = r.object(func(name string) error {
		err := there.add(name, ofEntry)
		switch {
		case err != nil:
		case name == "key":
			e.Key, err = r.string()
		default:
			e.Value, err = r.string()
		}
		return err
	})
	if err == nil && e.Key == "" {
		err = &fieldError{path: []string{"key"}, problem: "is missing or empty"}
	}
	return e, err
}

// check returns an error if the question, read to its end, has no meaning.
func (q *question) check() error {
	switch {
	case q.said.has(byRules) && q.said.has(byLimit):
		name := q.said.first(byLimit)
		return &fieldError{path: []string{name}, problem: name + " does not go together with domain and descriptors"}
	case q.said.has(byRules):
		return q.checkDescriptors()
	case !q.said.has(anyKey):
		return &fieldError{path: []string{"key"}, problem: "want key and limit, or domain and descriptors"}
	case q.said&anyKey == anyKey:
		return &fieldError{path: []string{"key_base64"}, problem: "want key or key_base64, not both"}
	case !q.said.has(saidLimit):
		return &fieldError{path: []string{"limit"}, problem: "want a limit such as \"10/1m\""}
	}
	return nil
}

// checkDescriptors gives those without a cost the one of the question.
func (q *question) checkDescriptors() error {
	switch {
	case q.domain == "":
		return &fieldError{path: []string{"domain"}, problem: "want a domain with the descriptors"}
	case len(q.descriptors) == 0:
		return &fieldError{path: []string{"descriptors"}, problem: "want at least one descriptor"}
	}
	for i := range q.descriptors {
		if !q.costed[i] {
			q.descriptors[i].Cost = q.cost
		}
	}
	return nil
}

// request returns the request of a question about a key.
func (q *question) request(limits *limitCache) (penstock.Request, error) {
	r, err := limits.request(q.limit)
	if err != nil {
		return r, &fieldError{
			path: []string{"limit"}, kind: ProblemBadLimit,
			problem: strings.TrimPrefix(err.Error(), "penstock: "),
		}
	}
	r.Key, r.Cost, r.ID, r.AtMost, r.MaxDelay = q.key, q.cost, q.id, q.atMost, q.maxDelay
	return r, nil
}

// undoes reports whether the question gives something back.
func (q *question) undoes() bool {
	for i := range q.descriptors {
		if q.descriptors[i].Cost < 0 {
			return true
		}
	}
	return q.cost < 0 && !q.said.has(byRules)
}
