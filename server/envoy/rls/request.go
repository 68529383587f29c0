package rls

import (
	"fmt"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A Request is Envoy's RateLimitRequest.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	HitsAddend  uint32 // for descriptors without their own; 0 means 1
}

// A Descriptor is Envoy's RateLimitDescriptor: entries that select a rule and a key.
type Descriptor struct {
	Entries []rules.Entry

	// Limit replaces the limit of the rules if HasLimit is set.
	Limit    Override
	HasLimit bool

	// HitsAddend is the cost if HasHitsAddend is set; 0 peeks.
	HitsAddend    uint64
	HasHitsAddend bool

	// IsNegativeHits refunds the hits.
	IsNegativeHits bool

	forbidden bool // refunds, which the caller may not
	releases  bool // set by forbidRefunds
}

// An Override is the limit of a descriptor that does not use the rules.
type Override struct {
	RequestsPerUnit uint32
	Unit            int32 // Envoy's RateLimitUnit

	// UnitMultiplier is how many units the period has, if HasUnitMultiplier is set.
	UnitMultiplier    uint32
	HasUnitMultiplier bool
}

// forbidRefunds marks the descriptors that refund hits, if the caller may not. They fail alone:
// Envoy lets a request pass whose call fails, so a descriptor that its caller made up must
// not fail the others. It reports how many there are.
//
// A descriptor with the ID of a permit releases it, which every caller may that knows the ID.
func (q *Request) forbidRefunds(hasID func([]rules.Entry) bool, mayRefund func() bool) (forbidden int) {
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		d.releases = q.cost(d) < 0 && !d.HasLimit && hasID(d.Entries)
		if d.forbidden = q.cost(d) < 0 && !d.releases && (forbidden > 0 || !mayRefund()); d.forbidden {
			forbidden++
		}
	}
	return forbidden
}

// forbidden returns the entries and costs of the descriptors that refund though the caller
// may not.
func (q *Request) forbidden() (ds []engine.Descriptor) {
	for i := range q.Descriptors {
		if d := &q.Descriptors[i]; d.forbidden {
			ds = append(ds, engine.Descriptor{Entries: d.Entries, Cost: q.cost(d)})
		}
	}
	return ds
}

// maxHits is the highest cost, above what any limit holds. Costs of one key add up, and a sum that
// overflowed would fail the call, after which Envoy lets the request pass: a client may choose hits.
const maxHits = 1 << 50

// cost returns the cost of a descriptor. A HitsAddend of 0 in the request may be
// unset, so it means 1; a descriptor's own 0 is 0.
func (q *Request) cost(d *Descriptor) int64 {
	hits := uint64(max(q.HitsAddend, 1))
	if d.HasHitsAddend {
		hits = min(d.HitsAddend, maxHits)
	}
	if d.IsNegativeHits {
		return -int64(hits)
	}
	return int64(hits)
}

// maxPeriod is the longest period of an override.
const maxPeriod = 366 * 24 * time.Hour

// ownLimit returns the override as the limit of an engine descriptor.
func (o *Override) ownLimit() (*engine.OwnLimit, error) {
	unit := rules.Unit(o.Unit)
	if unit.Length() == 0 {
		return nil, fmt.Errorf("want a unit of time, got number %d", o.Unit)
	}
	own := &engine.OwnLimit{Limit: unit.Limit(o.RequestsPerUnit), RequestsPerUnit: o.RequestsPerUnit, Unit: unit}
	if !o.HasUnitMultiplier {
		return own, nil
	}
	n := time.Duration(o.UnitMultiplier)
	if n < 1 || n > maxPeriod/unit.Length() {
		return nil, fmt.Errorf("want a period of up to 366 days, got %d times a %v", o.UnitMultiplier, unit)
	}
	own.Limit.Period *= n
	return own, nil
}

// reset empties the request and keeps its allocated memory.
func (q *Request) reset() {
	q.Domain, q.HitsAddend, q.Descriptors = "", 0, q.Descriptors[:0]
}

// addDescriptor appends an empty descriptor and returns it. It reuses the memory of
// an earlier request if there is any.
func (q *Request) addDescriptor() *Descriptor {
	if n := len(q.Descriptors); n < cap(q.Descriptors) {
		q.Descriptors = q.Descriptors[:n+1]
		d := &q.Descriptors[n]
		*d = Descriptor{Entries: d.Entries[:0]}
		return d
	}
	q.Descriptors = append(q.Descriptors, Descriptor{})
	return &q.Descriptors[len(q.Descriptors)-1]
}

func tooManyEntries(limit int) error {
	return fmt.Errorf("%w: a descriptor has more than %d entries", ErrMalformed, limit)
}

// tooManyDescriptors returns the engine's error before the descriptors are allocated.
func tooManyDescriptors(limit int) error {
	return fmt.Errorf("%w: at most %d are decided at once", engine.ErrTooManyDescriptors, limit)
}

// The binary form is decoded here and encoded in response.go by hand: generated
// messages take a third of a call's time, most of it for allocations. The tests compare
// both with the generated code.

// Unmarshal decodes a request from protobuf's binary form, with at most maxDescriptors
// descriptors of maxEntries entries. Its strings share the memory of data, which must not change while the
// request is in use. Unlike generated code, it accepts strings that are not UTF-8: a
// header value may have any encoding or none, and must still be limited.
func (q *Request) Unmarshal(data []byte, maxDescriptors, maxEntries int) error {
	q.reset()
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.BytesType):
			q.Domain = f.text()
		case tag(2, protowire.BytesType):
			if len(q.Descriptors) == maxDescriptors {
				return tooManyDescriptors(maxDescriptors)
			}
			return q.addDescriptor().unmarshal(f.bytes, maxEntries)
		case tag(3, protowire.VarintType):
			q.HitsAddend = uint32(f.number)
		}
		return nil
	})
}

func (d *Descriptor) unmarshal(data []byte, maxEntries int) error {
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.BytesType):
			if len(d.Entries) == maxEntries {
				return tooManyEntries(maxEntries)
			}
			d.Entries = append(d.Entries, rules.Entry{})
			return unmarshalEntry(&d.Entries[len(d.Entries)-1], f.bytes)
		case tag(2, protowire.BytesType):
			d.HasLimit = true
			return d.Limit.unmarshal(f.bytes)
		case tag(3, protowire.BytesType):
			d.HasHitsAddend = true
			return unmarshalWrapped(&d.HitsAddend, f.bytes)
		case tag(4, protowire.VarintType):
			d.IsNegativeHits = f.number != 0
		}
		return nil
	})
}

func unmarshalEntry(e *rules.Entry, data []byte) error {
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.BytesType):
			e.Key = f.text()
		case tag(2, protowire.BytesType):
			e.Value = f.text()
		}
		return nil
	})
}

func (o *Override) unmarshal(data []byte) error {
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.VarintType):
			o.RequestsPerUnit = uint32(f.number)
		case tag(2, protowire.VarintType):
			o.Unit = int32(f.number)
		case tag(3, protowire.BytesType):
			o.HasUnitMultiplier = true
			n := uint64(o.UnitMultiplier)
			if err := unmarshalWrapped(&n, f.bytes); err != nil {
				return err
			}
			o.UnitMultiplier = uint32(n)
		}
		return nil
	})
}

// unmarshalWrapped decodes a number in a wrapper message, which distinguishes an
// unset number from 0.
func unmarshalWrapped(n *uint64, data []byte) error {
	return forEachField(data, func(f field) error {
		if f.tag == tag(1, protowire.VarintType) {
			*n = f.number
		}
		return nil
	})
}

// A field is a field of a message, with bytes or a number depending on its type.
type field struct {
	tag    uint64 // number and type
	bytes  []byte
	number uint64
}

func tag(n protowire.Number, t protowire.Type) uint64 { return protowire.EncodeTag(n, t) }

// text returns the bytes of a field as a string, without a copy.
func (f field) text() string { return unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes)) }

// forEachField calls read for each field of a message. Fields of other wire types than
// varint and bytes have neither number nor bytes; no known field has those types.
func forEachField(data []byte, read func(field) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return malformedError(n)
		}
		if number > protowire.MaxValidNumber {
			return fmt.Errorf("%w: invalid field number %d", ErrMalformed, number)
		}
		data = data[n:]
		f := field{tag: tag(number, kind)}
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return malformedError(n)
		}
		if err := read(f); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func malformedError(n int) error {
	return fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n))
}
