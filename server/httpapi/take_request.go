package httpapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/takecall"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// maxEntries bounds the entries of a descriptor, whatever more the engine accepts from Envoy:
// its requests follow from a configuration, which may be large.
const maxEntries = 16

// A takeRequest is one request of /v1/take or /v1/auth: for a key under the limit
// that it carries, or for descriptors by the rules of a domain.
type takeRequest struct {
	takecall.Call
	fields         fieldSet
	reset          bool // the cost is penstock.Reset
	maxDescriptors int
	hasCost        []bool // which descriptors set a cost
}

func newTakeRequest(maxDescriptors int) takeRequest {
	return takeRequest{Call: takecall.Call{Request: penstock.Request{Cost: 1}, Hurried: true}, maxDescriptors: maxDescriptors}
}

// A fieldSet is the set of fields that a JSON object has, or of parameters that a URL has.
type fieldSet uint32

const (
	fieldKey fieldSet = 1 << iota
	fieldKeyBase64
	fieldLimit
	fieldCost
	fieldReset
	fieldAtMost
	fieldOverdraw
	fieldMaxDelay
	fieldKeepFree
	fieldNewID
	fieldID
	fieldHold
	fieldDomain
	fieldDescriptors
	fieldMode
	fieldRequests
	fieldEntries
	fieldValue
	fieldDeny
	fieldList

	keyFields   = fieldKey | fieldKeyBase64
	limitFields = keyFields | fieldLimit | fieldAtMost | fieldOverdraw | fieldMaxDelay | fieldKeepFree | fieldNewID | fieldHold
	ruleFields  = fieldDomain | fieldDescriptors
	ownFields   = keyFields | fieldLimit | fieldOverdraw | fieldNewID | fieldHold // have no meaning by rules
	listFields  = fieldMode | fieldRequests

	requestFields    = limitFields | ruleFields | fieldCost | fieldReset | fieldID
	descriptorFields = fieldEntries | fieldCost
	entryFields      = fieldKey | fieldValue

	// The parameters of /v1/auth with a fixed meaning.
	parameterFields = fieldKey | fieldLimit | fieldDomain | fieldCost | fieldMaxDelay | fieldDeny | fieldList
)

// fieldNames are in the order of the bits above.
var fieldNames = [...]string{
	"key", "key_base64", "limit", "cost", "reset", "at_most", "overdraw", "max_delay", "keep_free", "new_id", "id", "hold",
	"domain", "descriptors", "mode", "requests", "entries", "value",
	"deny", "list",
}

// fieldOf returns the field of a name, or none.
func fieldOf(name string) fieldSet {
	if i := slices.Index(fieldNames[:], name); i >= 0 {
		return 1 << i
	}
	return 0
}

// has reports whether the set has at least one of the fields.
func (s fieldSet) has(fields fieldSet) bool { return s&fields != 0 }

// add adds a field by its name. It must be one of the known fields, and new.
func (s *fieldSet) add(name string, known fieldSet) error {
	field := fieldOf(name) & known
	switch {
	case field == 0:
		return &fieldError{problem: fmt.Sprintf("unknown field %.80q, want %s", name, strings.Join(known.names(), ", "))}
	case s.has(field):
		return &fieldError{problem: fmt.Sprintf("duplicate field %q", name)}
	}
	*s |= field
	return nil
}

// names returns the names of the fields.
func (s fieldSet) names() (names []string) {
	for i, name := range fieldNames {
		if s.has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// decodeField reads the value of a field.
func (t *takeRequest) decodeField(j *jsonReader, name string) (err error) {
	r := &t.Request
	switch name {
	case "key":
		r.Key, err = j.key()
	case "key_base64":
		r.Key, err = j.keyBase64()
	case "limit":
		t.Limit, err = j.string()
	case "cost":
		r.Cost, err = j.integer()
	case "reset":
		t.reset, err = j.boolean()
	case "at_most":
		r.AtMost, err = j.boolean()
	case "overdraw":
		r.Overdraw, err = j.boolean()
	case "max_delay":
		r.MaxDelay, err = j.seconds()
	case "new_id":
		r.NewID, err = j.boolean()
	case "keep_free":
		r.KeepFree, err = j.integer()
	case "id":
		r.ID, err = j.shortString()
	case "hold":
		r.Hold, err = j.seconds()
	case "domain":
		t.Domain, err = j.shortString()
	case "descriptors":
		err = j.array(func(i int) error { return t.decodeDescriptor(j, i) })
	}
	return err
}

func (r *jsonReader) key() (string, error) {
	key, err := r.shortString()
	if err == nil && key == "" {
		err = errEmptyKey()
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
		return "", errTooLong(len(text))
	}
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case err != nil:
		return "", &fieldError{problem: "want base64 with padding: " + err.Error(), kind: ProblemBadKey}
	case len(key) == 0:
		return "", errEmptyKey()
	case len(key) > maxKey:
		return "", errTooLong(len(key))
	}
	return string(key), nil
}

// shortString reads a string of at most maxKey bytes. It returns a copy: a store
// may keep a key, and must not keep the whole body with it.
func (r *jsonReader) shortString() (string, error) {
	s, err := r.string()
	if err != nil {
		return "", err
	}
	if len(s) > maxKey {
		return "", errTooLong(len(s))
	}
	return strings.Clone(s), nil
}

func errEmptyKey() error {
	return &fieldError{problem: "must not be empty", kind: ProblemBadKey}
}

func errTooLong(n int) error {
	return &fieldError{problem: fmt.Sprintf("%d bytes long, want at most %d", n, maxKey), kind: ProblemBadKey}
}

func (t *takeRequest) decodeDescriptor(r *jsonReader, i int) error {
	if i == t.maxDescriptors {
		return &fieldError{problem: fmt.Sprintf("want at most %d descriptors", t.maxDescriptors)}
	}
	d := engine.Descriptor{Permits: engine.RenewPermits}
	has, err := r.object(descriptorFields, func(name string) (err error) {
		if name == "cost" {
			d.Cost, err = r.integer()
		} else {
			d.Entries, err = r.entries()
		}
		return err
	})
	if err == nil && len(d.Entries) == 0 {
		err = &fieldError{path: []string{"entries"}, problem: "want at least one entry"}
	}
	t.Descriptors = append(t.Descriptors, d)
	t.hasCost = append(t.hasCost, has.has(fieldCost))
	return err
}

// entries reads the entries of a descriptor.
func (r *jsonReader) entries() (entries []rules.Entry, err error) {
	length := 0
	err = r.array(func(i int) error {
		if i == maxEntries {
			return &fieldError{problem: fmt.Sprintf("want at most %d entries", maxEntries)}
		}
		e, err := r.entry()
		if length += len(e.Key) + len(e.Value); err == nil && length > maxKey {
			err = errTooLong(length)
		}
		entries = append(entries, e)
		return err
	})
	return entries, err
}

func (r *jsonReader) entry() (e rules.Entry, err error) {
	_, err = r.object(entryFields, func(name string) (err error) {
		if name == "key" {
			e.Key, err = r.string()
		} else {
			e.Value, err = r.string()
		}
		return err
	})
	if err == nil && e.Key == "" {
		err = &fieldError{path: []string{"key"}, problem: "missing or empty"}
	}
	return e, err
}

// check returns an error if fields are missing or contradict each other. It gives
// descriptors without a cost the cost of the request.
func (t *takeRequest) check() error {
	if t.reset {
		t.Request.Cost = penstock.Reset
	}
	switch {
	case t.reset && t.fields.has(fieldCost):
		return &fieldError{path: []string{"reset"}, problem: "reset cannot be combined with cost: it refunds all units"}
	case t.fields.has(ruleFields) && t.fields.has(ownFields):
		name := (t.fields & ownFields).names()[0]
		return &fieldError{path: []string{name}, problem: name + " cannot be combined with domain and descriptors"}
	case t.fields.has(ruleFields):
		return t.checkDescriptors()
	case !t.fields.has(keyFields):
		return &fieldError{path: []string{"key"}, problem: "want key and limit, or domain and descriptors"}
	case t.fields&keyFields == keyFields:
		return &fieldError{path: []string{"key_base64"}, problem: "want key or key_base64, not both"}
	case !t.fields.has(fieldLimit):
		return &fieldError{path: []string{"limit"}, problem: "want a limit such as \"10/1m\""}
	}
	return nil
}

func (t *takeRequest) checkDescriptors() error {
	switch {
	case t.Domain == "":
		return &fieldError{path: []string{"domain"}, problem: "want a domain with the descriptors"}
	case len(t.Descriptors) == 0:
		return &fieldError{path: []string{"descriptors"}, problem: "want at least one descriptor"}
	}
	total := int64(0)
	for i := range t.Descriptors {
		if !t.hasCost[i] {
			t.Descriptors[i].Cost = t.Request.Cost
		}
		// A store rejects such a sum on one key, in a list after others were charged.
		cost := max(t.Descriptors[i].Cost, 0)
		if cost > math.MaxInt64-total {
			return &fieldError{path: []string{"descriptors"}, problem: "the costs add up to more than 2^63-1", kind: ProblemBadCost}
		}
		total += cost
	}
	return nil
}

// storeRequest returns the request for the store, of a request with key and limit. With a name of
// CL.THROTTLE's or of overrides, a limit can change what was counted there, like a refund.
func (t *takeRequest) storeRequest(e *engine.Engine, mayRefund func() bool) (penstock.Request, error) {
	r, err := t.StoreRequest(e, mayRefund)
	if err != nil {
		return r, limitError(err)
	}
	if requestlimits.HasReservedName(r.Limit) && !mayRefund() {
		return r, errRefundForbidden
	}
	return r, nil
}

// limitError returns the error of a limit that is invalid, or that the caller may not bring.
func limitError(err error) error {
	if refused, ok := errors.AsType[*requestlimits.Refusal](err); ok {
		return asFieldError(refused)
	}
	return &fieldError{
		path: []string{"limit"}, kind: ProblemBadLimit,
		problem: strings.TrimPrefix(err.Error(), "penstock: "),
	}
}

// checkSettle returns an error if the request cannot settle what was taken.
func (t *takeRequest) checkSettle() error {
	switch {
	case t.reset:
		return &fieldError{path: []string{"reset"}, problem: "reset cannot be settled"}
	case !t.fields.has(fieldCost) && (len(t.Descriptors) == 0 || slices.Contains(t.hasCost, false)):
		return &fieldError{path: []string{"cost"}, problem: "want the amount that was used"}
	case t.Request.ID == "":
		return &fieldError{path: []string{"id"}, problem: "want the id of what was taken", kind: ProblemBadCost}
	case t.Request.Cost < 0:
		return &fieldError{path: []string{"cost"}, problem: "must not be negative", kind: ProblemBadCost}
	case slices.ContainsFunc(t.Descriptors, func(d engine.Descriptor) bool { return d.Cost < 0 }):
		return &fieldError{path: []string{"descriptors"}, problem: "the cost of a descriptor must not be negative", kind: ProblemBadCost}
	}
	return nil
}
