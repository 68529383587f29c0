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
// descriptors would take gigabytes before they could be counted.

// TypeURL is the type of the resources that a client asks for.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Numbers of the fields of the messages.
const (
	configName        = 1
	configDomain      = 2
	configDescriptors = 3

	descriptorKey            = 1
	descriptorValue          = 2
	descriptorRateLimit      = 3
	descriptorDescriptors    = 4
	descriptorShadowMode     = 5
	descriptorDetailedMetric = 6
	descriptorQuotaMode      = 7
	descriptorMetadata       = 8

	limitUnit            = 1
	limitRequestsPerUnit = 2
	limitUnlimited       = 3
	limitName            = 4
	limitReplaces        = 5

	replaceName = 1
)

var unitNames = []string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"}

// A descriptor is the message without the descriptors within it, which stay encoded.
type descriptor struct {
	key, value string
	limit      *rateLimit
	shadow     bool
	detailed   bool
	quota      bool
	metadata   []byte
	children   [][]byte
}

type rateLimit struct {
	unit      uint64
	requests  uint32
	unlimited bool
	name      string
	replaces  []string
}

// A field is one field of an encoded message.
type field struct {
	number   protowire.Number
	kind     protowire.Type
	number64 uint64 // of a varint
	bytes    []byte // of a string or a message
}

var errMalformed = errors.New("message is malformed")

// eachField calls a function for each field of a message.
func eachField(message []byte, do func(field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		f := field{number: number, kind: kind}
		message = message[n:]
		switch kind {
		case protowire.VarintType:
			f.number64, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

func (f *field) text(into *string) error {
	if f.kind != protowire.BytesType || !utf8.Valid(f.bytes) {
		return errMalformed
	}
	*into = string(f.bytes)
	return nil
}

func (f *field) message(into *[]byte) error {
	if f.kind != protowire.BytesType {
		return errMalformed
	}
	*into = f.bytes
	return nil
}

func (f *field) flag(into *bool) error {
	if f.kind != protowire.VarintType {
		return errMalformed
	}
	*into = f.number64 != 0
	return nil
}

func (f *field) whole(into *uint64) error {
	if f.kind != protowire.VarintType {
		return errMalformed
	}
	*into = f.number64
	return nil
}

// A resource is a RateLimitConfig whose descriptors are still encoded.
type resource struct {
	name, domain string
	descriptors  [][]byte
}

func (w *writer) decodeResource(message []byte) (*resource, error) {
	r := &resource{}
	err := eachField(message, func(f field) error {
		switch f.number {
		case configName:
			return f.text(&r.name)
		case configDomain:
			return f.text(&r.domain)
		case configDescriptors:
			r.descriptors = append(r.descriptors, nil)
			return f.message(&r.descriptors[len(r.descriptors)-1])
		}
		return w.skip("RateLimitConfig", f)
	})
	return r, err
}

func (w *writer) decodeDescriptor(message []byte) (*descriptor, error) {
	d := &descriptor{}
	err := eachField(message, func(f field) error {
		switch f.number {
		case descriptorKey:
			return f.text(&d.key)
		case descriptorValue:
			return f.text(&d.value)
		case descriptorRateLimit:
			return w.decodeLimit(f, d)
		case descriptorDescriptors:
			d.children = append(d.children, nil)
			return f.message(&d.children[len(d.children)-1])
		case descriptorShadowMode:
			return f.flag(&d.shadow)
		case descriptorDetailedMetric:
			return f.flag(&d.detailed)
		case descriptorQuotaMode:
			return f.flag(&d.quota)
		case descriptorMetadata:
			return f.message(&d.metadata)
		}
		return w.skip("RateLimitDescriptor", f)
	})
	return d, err
}

func (w *writer) decodeLimit(f field, d *descriptor) error {
	var message []byte
	if err := f.message(&message); err != nil {
		return err
	}
	d.limit = &rateLimit{}
	return eachField(message, func(f field) error {
		switch l := d.limit; f.number {
		case limitUnit:
			return f.whole(&l.unit)
		case limitRequestsPerUnit:
			l.requests = uint32(f.number64) // as protobuf does
			return f.whole(&f.number64)
		case limitUnlimited:
			return f.flag(&l.unlimited)
		case limitName:
			return f.text(&l.name)
		case limitReplaces:
			return w.decodeReplace(f, l)
		}
		return w.skip("RateLimitPolicy", f)
	})
}

func (w *writer) decodeReplace(f field, l *rateLimit) error {
	var message []byte
	if err := f.message(&message); err != nil {
		return err
	}
	l.replaces = append(l.replaces, "")
	return eachField(message, func(f field) error {
		if f.number == replaceName {
			return f.text(&l.replaces[len(l.replaces)-1])
		}
		return w.skip("RateLimitReplace", f)
	})
}

// skip remembers a field of a newer version of the messages. It is ignored, as is usual for
// protobuf: to reject it would be to reject all rules.
func (w *writer) skip(message string, f field) error {
	const kept = 10
	text := fmt.Sprintf("%s.%d", message, f.number)
	if len(w.unknown) < kept && !slices.Contains(w.unknown, text) {
		w.unknown = append(w.unknown, text)
	}
	return nil
}
