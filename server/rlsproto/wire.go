package rlsproto

import (
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock/server/rules"
)

// The binary form is read and written by hand. Generated messages cost a third
// of what a call does, most of it in allocations. The tests hold both against
// each other.

// Unmarshal reads a request in binary form, of at most so many descriptors. Its
// texts are those of data, which must not change as long as the request is used.
// Unlike generated messages it takes texts of any bytes: what a client sends to
// Envoy may be in no encoding at all, and is to be limited all the same.
func (q *Request) Unmarshal(data []byte, maxDescriptors int) error {
	q.reset()
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.BytesType):
			q.Domain = f.text()
		case tag(2, protowire.BytesType):
			if len(q.Descriptors) == maxDescriptors {
				return tooManyDescriptors(maxDescriptors)
			}
			return q.addDescriptor().unmarshal(f.bytes)
		case tag(3, protowire.VarintType):
			q.HitsAddend = uint32(f.number)
		}
		return nil
	})
}

func (d *Descriptor) unmarshal(data []byte) error {
	return forEachField(data, func(f field) error {
		switch f.tag {
		case tag(1, protowire.BytesType):
			if len(d.Entries) == maxEntries {
				return tooManyEntries()
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

// unmarshalWrapped reads a number that is in a message of its own, so that one
// can tell whether it was set.
func unmarshalWrapped(n *uint64, data []byte) error {
	return forEachField(data, func(f field) error {
		if f.tag == tag(1, protowire.VarintType) {
			*n = f.number
		}
		return nil
	})
}

// A field is one of a message. It has bytes or a number, by its type.
type field struct {
	tag    uint64 // number and type
	bytes  []byte
	number uint64
}

func tag(n protowire.Number, t protowire.Type) uint64 { return protowire.EncodeTag(n, t) }

// text returns the bytes of a field as a text, without a copy.
func (f field) text() string { return unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes)) }

// forEachField calls read for every field of a message that is a number or bytes. The
// others are none of ours.
func forEachField(data []byte, read func(field) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return malformedError(n)
		}
		if number > protowire.MaxValidNumber {
			return fmt.Errorf("%w: there is no field %d", ErrMalformed, number)
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

// The codes of a response and of its statuses.
const (
	codeOK        = 1
	codeOverLimit = 2
)

func code(over bool) uint64 {
	if over {
		return codeOverLimit
	}
	return codeOK
}

// Append appends the response in binary form.
func (r *Response) Append(buf []byte) []byte {
	buf = appendNumber(buf, 1, code(r.Over))
	for i := range r.Statuses {
		st := &r.Statuses[i]
		buf = protowire.AppendTag(buf, 2, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(st.size()))
		buf = st.append(buf)
	}
	for _, h := range r.Headers {
		buf = protowire.AppendTag(buf, 3, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(sizeText(1, h.Name)+sizeText(2, h.Value)))
		buf = appendText(buf, 1, h.Name)
		buf = appendText(buf, 2, h.Value)
	}
	if r.Metadata != nil {
		buf = protowire.AppendTag(buf, 6, protowire.BytesType)
		// It fails for texts that are not UTF-8, and there are none in it.
		data, _ := proto.Marshal(r.Metadata)
		buf = protowire.AppendBytes(buf, data)
	}
	return buf
}

func (st *Status) append(buf []byte) []byte {
	buf = appendNumber(buf, 1, code(st.Over))
	if st.HasLimit {
		buf = protowire.AppendTag(buf, 2, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(st.Limit.size()))
		buf = st.Limit.append(buf)
	}
	buf = appendNumber(buf, 3, uint64(st.Remaining))
	if st.Reset > 0 {
		buf = appendWrapped(buf, 4, uint64(st.Reset))
	}
	return buf
}

func (st *Status) size() int {
	n := sizeNumber(1, code(st.Over)) + sizeNumber(3, uint64(st.Remaining))
	if st.HasLimit {
		n += protowire.SizeTag(2) + protowire.SizeBytes(st.Limit.size())
	}
	if st.Reset > 0 {
		n += sizeWrapped(4, uint64(st.Reset))
	}
	return n
}

func (l *Limit) append(buf []byte) []byte {
	buf = appendNumber(buf, 1, uint64(l.RequestsPerUnit))
	buf = appendNumber(buf, 2, uint64(l.Unit))
	buf = appendText(buf, 3, l.Name)
	if l.UnitMultiplier > 0 {
		buf = appendWrapped(buf, 4, uint64(l.UnitMultiplier))
	}
	return buf
}

func (l *Limit) size() int {
	n := sizeNumber(1, uint64(l.RequestsPerUnit)) + sizeNumber(2, uint64(l.Unit)) + sizeText(3, l.Name)
	if l.UnitMultiplier > 0 {
		n += sizeWrapped(4, uint64(l.UnitMultiplier))
	}
	return n
}

// appendNumber appends a field, unless it is zero, which is what is left out.
func appendNumber(buf []byte, number protowire.Number, n uint64) []byte {
	if n == 0 {
		return buf
	}
	return protowire.AppendVarint(protowire.AppendTag(buf, number, protowire.VarintType), n)
}

func sizeNumber(number protowire.Number, n uint64) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(number) + protowire.SizeVarint(n)
}

func appendText(buf []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return buf
	}
	return protowire.AppendString(protowire.AppendTag(buf, number, protowire.BytesType), s)
}

func sizeText(number protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(number) + protowire.SizeBytes(len(s))
}

// appendWrapped appends a number in a message of its own: the seconds of a
// duration, or a number that need not be set.
func appendWrapped(buf []byte, number protowire.Number, n uint64) []byte {
	buf = protowire.AppendTag(buf, number, protowire.BytesType)
	buf = protowire.AppendVarint(buf, uint64(sizeNumber(1, n)))
	return appendNumber(buf, 1, n)
}

func sizeWrapped(number protowire.Number, n uint64) int {
	return protowire.SizeTag(number) + protowire.SizeBytes(sizeNumber(1, n))
}
