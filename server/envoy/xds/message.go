package xds

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages are decoded by hand: the published module that has them lacks quota_mode,
// metadata and the units above a day, and with generated code a few megabytes of empty
// descriptors would take gigabytes before they could be counted. So messages within a message stay
// encoded until they are needed.

// TypeURL is the type of the resources that a client asks for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// A resource is a RateLimitConfig.
type resource struct {
	name, domain string
	descriptors  [][]byte

	nodes []*node // of the descriptors, in the order in which they are written
}

func (w *writer) decodeResource(message []byte) (*resource, error) {
	r := &resource{}
	return r, w.decode("RateLimitConfig", message, fields{1: &r.name, 2: &r.domain, 3: &r.descriptors})
}

type descriptor struct {
	key, value              string
	limit                   []byte // nil if there is none
	children                [][]byte
	shadow, detailed, quota bool
	metadata                []byte
}

func (w *writer) decodeDescriptor(message []byte) (*descriptor, error) {
	d := &descriptor{}
	return d, w.decode("RateLimitDescriptor", message, fields{
		1: &d.key, 2: &d.value, 3: &d.limit, 4: &d.children, 5: &d.shadow, 6: &d.detailed, 7: &d.quota, 8: &d.metadata,
	})
}

type rateLimit struct {
	unit, requests uint64
	unlimited      bool
	name           string
	replaces       [][]byte
}

func (w *writer) decodeLimit(message []byte) (*rateLimit, error) {
	l := &rateLimit{}
	return l, w.decode("RateLimitPolicy", message, fields{1: &l.unit, 2: &l.requests, 3: &l.unlimited, 4: &l.name, 5: &l.replaces})
}

// fields are where the fields of a message go, by their numbers: a pointer to a text, a flag, a number,
// an encoded message, or several of these.
type fields map[protowire.Number]any

var errMalformed = errors.New("message is malformed")

// decode decodes the fields of a message. Of a field that is there twice, the last one counts.
func (w *writer) decode(name string, message []byte, into fields) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return errMalformed
		}
		if field, known := into[number]; !known {
			w.skip(fmt.Sprintf("%s.%d", name, number))
		} else if !decodeField(field, kind, message[:n]) {
			return errMalformed
		}
		message = message[n:]
	}
	return nil
}

// decodeField decodes the value of a field, and reports whether it has the right form.
func decodeField(field any, kind protowire.Type, value []byte) bool {
	number, _ := protowire.ConsumeVarint(value) // these matter if they are of the kind
	content, _ := protowire.ConsumeBytes(value)
	isNumber, isBytes := kind == protowire.VarintType, kind == protowire.BytesType
	switch into := field.(type) {
	case *bool:
		*into = number != 0
		return isNumber
	case *uint64:
		*into = number
		return isNumber
	case *string:
		*into = string(content)
		return isBytes && utf8.Valid(content)
	case *[]byte:
		*into = content
		return isBytes
	case *[][]byte:
		*into = append(*into, content)
		return isBytes
	}
	return false
}

// skip remembers a field of a newer version of the messages. It is ignored, as is usual for
// protobuf: to reject it would be to reject all rules.
func (w *writer) skip(field string) {
	const kept = 10
	if len(w.unknown) < kept && !slices.Contains(w.unknown, field) {
		w.unknown = append(w.unknown, field)
	}
}
