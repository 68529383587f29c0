package rls

import (
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-io/penstock/server/rules"
)

// The binary form is decoded here and encoded in wire_encode.go by hand: generated
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
