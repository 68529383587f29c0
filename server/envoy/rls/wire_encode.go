package rls

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Append appends the response in protobuf's binary form.
func (r *Response) Append(buf []byte) []byte {
	buf = appendNumber(buf, 1, code(r.OverLimit))
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
		// Marshal fails only for strings that are not UTF-8; newMetadata replaces those.
		data, _ := proto.Marshal(r.Metadata)
		buf = protowire.AppendBytes(buf, data)
	}
	return buf
}

// Envoy's codes of a response and of its statuses.
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

// code is 0, UNKNOWN, for a descriptor that was not decided.
func (st *Status) code() uint64 {
	if st.Failed {
		return 0
	}
	return code(st.OverLimit)
}

func (st *Status) append(buf []byte) []byte {
	buf = appendNumber(buf, 1, st.code())
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
	n := sizeNumber(1, st.code()) + sizeNumber(3, uint64(st.Remaining))
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

// appendNumber appends a field unless it is zero, which proto3 omits.
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

// appendWrapped appends a number in a wrapper message: the seconds of a Duration, or an
// optional number.
func appendWrapped(buf []byte, number protowire.Number, n uint64) []byte {
	buf = protowire.AppendTag(buf, number, protowire.BytesType)
	buf = protowire.AppendVarint(buf, uint64(sizeNumber(1, n)))
	return appendNumber(buf, 1, n)
}

func sizeWrapped(number protowire.Number, n uint64) int {
	return protowire.SizeTag(number) + protowire.SizeBytes(sizeNumber(1, n))
}
