package tracing

import (
	"encoding/binary"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of OTLP's messages that spans have, by their numbers in opentelemetry/proto/trace/v1/trace.proto.
const (
	requestResourceSpans = 1

	resourceSpansResource = 1
	resourceSpansScopes   = 2
	resourceAttributes    = 1

	scopeSpansScope = 1
	scopeSpansSpans = 2
	scopeName       = 1

	spanTraceID       = 1
	spanID            = 2
	spanParentID      = 4
	spanName          = 5
	spanKind          = 6
	spanStart         = 7
	spanEnd           = 8
	spanAttributes    = 9
	spanEvents        = 11
	spanDroppedEvents = 12
	spanLinks         = 13
	spanStatus        = 15
	spanFlags         = 16

	eventTime       = 1
	eventName       = 2
	eventAttributes = 3

	linkTraceID = 1
	linkSpanID  = 2

	statusCode      = 3
	statusCodeError = 2

	keyValueKey   = 1
	keyValueValue = 2
	valueText     = 1
	valueNumber   = 3
)

// scope is the name by which spans say what made them.
const scope = "github.com/penstock-io/penstock"

// maxText is the longest text of an attribute.
const maxText = 256

// encode returns an ExportTraceServiceRequest.
func encode(resource []attribute, spans []*record) []byte {
	scopes := appendText(nil, scopeName, scope)
	scopes = appendBytes(nil, scopeSpansScope, scopes)
	for _, r := range spans {
		scopes = appendBytes(scopes, scopeSpansSpans, r.encode())
	}
	all := appendBytes(nil, resourceSpansResource, appendAttributes(nil, resourceAttributes, resource))
	all = appendBytes(all, resourceSpansScopes, scopes)
	return appendBytes(nil, requestResourceSpans, all)
}

func (r *record) encode() []byte {
	b := appendBytes(nil, spanTraceID, r.trace[:])
	b = appendID(b, spanID, r.span)
	b = appendID(b, spanParentID, r.parent)
	b = appendText(b, spanName, r.name)
	b = appendNumber(b, spanKind, int64(r.kind))
	b = appendTime(b, spanStart, r.start)
	b = appendTime(b, spanEnd, r.end)
	b = appendAttributes(b, spanAttributes, r.attributes)
	for i := range r.events {
		e := &r.events[i]
		one := appendText(appendTime(nil, eventTime, e.at), eventName, e.name)
		b = appendBytes(b, spanEvents, appendAttributes(one, eventAttributes, e.attributes))
	}
	if r.dropped > 0 {
		b = appendNumber(b, spanDroppedEvents, int64(r.dropped))
	}
	for _, l := range r.links {
		b = appendBytes(b, spanLinks, appendID(appendBytes(nil, linkTraceID, l.trace[:]), linkSpanID, l.span))
	}
	if r.failed {
		b = appendBytes(b, spanStatus, appendNumber(nil, statusCode, statusCodeError))
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, spanFlags, protowire.Fixed32Type), sampledFlag)
}

func appendAttributes(b []byte, field protowire.Number, as []attribute) []byte {
	for _, a := range as {
		var value []byte
		if a.text != "" {
			value = appendText(nil, valueText, a.text)
		} else {
			value = appendNumber(nil, valueNumber, a.number)
		}
		b = appendBytes(b, field, appendBytes(appendText(nil, keyValueKey, a.key), keyValueValue, value))
	}
	return b
}

// appendText appends a text. One byte that is not UTF-8 would make a receiver reject all spans, and callers choose keys.
func appendText(b []byte, field protowire.Number, text string) []byte {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendID(b []byte, field protowire.Number, id uint64) []byte {
	return appendBytes(b, field, binary.BigEndian.AppendUint64(nil, id))
}

func appendNumber(b []byte, field protowire.Number, n int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}

func appendTime(b []byte, field protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(at.UnixNano()))
}
