package xdstest

import "google.golang.org/protobuf/encoding/protowire"

// A Config is a RateLimitConfig.
type Config struct {
	Name, Domain string
	Descriptors  []Descriptor
}

// A Descriptor is a RateLimitDescriptor.
type Descriptor struct {
	Key, Value         string
	Limit              *Limit
	Descriptors        []Descriptor
	Shadow, Detailed   bool
	Quota              bool
	Metadata           []byte // an encoded google.protobuf.Struct
	UnknownFieldNumber int    // 0: none
}

// A Limit is a RateLimitPolicy.
type Limit struct {
	Unit, Requests uint64
	Unlimited      bool
	Name           string
	Replaces       []string
}

// Units of a Limit.
const (
	Unknown = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

// Encode returns the message.
func (c *Config) Encode() []byte {
	b := appendText(nil, 1, c.Name)
	b = appendText(b, 2, c.Domain)
	for i := range c.Descriptors {
		b = appendMessage(b, 3, c.Descriptors[i].encode())
	}
	return b
}

func (d *Descriptor) encode() []byte {
	b := appendText(nil, 1, d.Key)
	b = appendText(b, 2, d.Value)
	if d.Limit != nil {
		b = appendMessage(b, 3, d.Limit.encode())
	}
	for i := range d.Descriptors {
		b = appendMessage(b, 4, d.Descriptors[i].encode())
	}
	b = appendFlag(b, 5, d.Shadow)
	b = appendFlag(b, 6, d.Detailed)
	b = appendFlag(b, 7, d.Quota)
	if d.Metadata != nil {
		b = appendMessage(b, 8, d.Metadata)
	}
	if d.UnknownFieldNumber > 0 {
		b = appendText(b, protowire.Number(d.UnknownFieldNumber), "new")
	}
	return b
}

func (l *Limit) encode() []byte {
	b := appendNumber(nil, 1, l.Unit)
	b = appendNumber(b, 2, l.Requests)
	b = appendFlag(b, 3, l.Unlimited)
	b = appendText(b, 4, l.Name)
	for _, name := range l.Replaces {
		b = appendMessage(b, 5, appendText(nil, 1, name))
	}
	return b
}

func appendMessage(b []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), message)
}

func appendText(b []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return appendMessage(b, number, []byte(text))
}

func appendNumber(b []byte, number protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), n)
}

func appendFlag(b []byte, number protowire.Number, on bool) []byte {
	return appendNumber(b, number, protowire.EncodeBool(on))
}
