package tracing

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"testing"
	"time"
)

const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestParseParentTakesOnlySampledAndWellFormed(t *testing.T) {
	for text, want := range map[string]bool{
		sampled:                            true,
		sampled[:53] + "ff":                true, // later flags
		"01" + sampled[2:]:                 true,
		"cc" + sampled[2:] + "-what-later": true,
		"":                                 false,
		sampled[:54]:                       false,
		sampled + " ":                      false,
		sampled + "-more":                  false, // version 00 has nothing more
		"01" + sampled[2:] + "more":        false,
		"ff" + sampled[2:]:                 false,
		"0x" + sampled[2:]:                 false,
		sampled[:53] + "00":                false, // not sampled
		sampled[:53] + "02":                false,
		sampled[:53] + "0g":                false,
		strings.ToUpper(sampled):           false,
		strings.Replace(sampled, "4bf9", "4Bf9", 1):                         false,
		strings.Replace(sampled, "00f067aa0ba902b7", "0000000000000000", 1): false,
		"00-" + strings.Repeat("0", 32) + sampled[35:]:                      false,
		strings.ReplaceAll(sampled, "-", "_"):                               false,
		strings.Repeat("-", 1<<16):                                          false,
	} {
		if _, ok := parseParent(text); ok != want {
			t.Errorf("parseParent(%.70q) is %t, want %t", text, ok, want)
		}
	}
}

func FuzzParseParent(f *testing.F) {
	f.Add(sampled)
	f.Add("01" + sampled[2:] + "-x")
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := parseParent(text)
		if ok && (hex.EncodeToString(p.trace[:]) != text[3:35] || p.span == 0) {
			t.Errorf("%q is %v", text, p)
		}
	})
}

func TestReadEnvironment(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for _, test := range []struct {
		environ string // separated by spaces
		want    string // the URL, "" if nothing is traced, or an error
	}{
		{"", ""},
		{"OTEL_SERVICE_NAME=a OTEL_EXPORTER_OTLP_PROTOCOL=odd", ""},
		{endpoint, "http://c:4318/v1/traces"},
		{endpoint + "/base/", "http://c:4318/base/v1/traces"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/x " + endpoint, "https://c/x"},
		{endpoint + " OTEL_SDK_DISABLED=TRUE", ""},
		{endpoint + " OTEL_TRACES_EXPORTER=none", ""},
		{endpoint + " OTEL_TRACES_EXPORTER=otlp", "http://c:4318/v1/traces"},
		{endpoint + " OTEL_TRACES_EXPORTER=zipkin", `OTEL_TRACES_EXPORTER="zipkin": want otlp or none`},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "http://c:4318"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "https://c:4317"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_INSECURE=true", "http://c:4317"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317", "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL like http://collector:4318"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:secret@%zz", "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL like http://collector:4318"},
		{endpoint + " OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/json": want http/protobuf or grpc`},
		{endpoint + " OTEL_EXPORTER_OTLP_HEADERS=secret", "OTEL_EXPORTER_OTLP_HEADERS: want name=value, with commas between them"},
		{endpoint + " OTEL_EXPORTER_OTLP_HEADERS=a=b%0d%0ac", "OTEL_EXPORTER_OTLP_HEADERS: want name=value, with commas between them"},
		{endpoint + " OTEL_EXPORTER_OTLP_TIMEOUT=0", `OTEL_EXPORTER_OTLP_TIMEOUT="0": want a number from 1 to 1048576`},
		{endpoint + " OTEL_BSP_MAX_QUEUE_SIZE=1e9", `OTEL_BSP_MAX_QUEUE_SIZE="1e9": want a number from 1 to 1048576`},
		{endpoint + " OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere", `OTEL_EXPORTER_OTLP_CERTIFICATE: no certificates in "/nowhere"`},
		{endpoint + " OTEL_EXPORTER_OTLP_CLIENT_KEY=/nowhere", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: open : no such file or directory"},
		{endpoint + " OTEL_RESOURCE_ATTRIBUTES=a", "OTEL_RESOURCE_ATTRIBUTES: want name=value, with commas between them"},
	} {
		got := ""
		if c, err := ReadEnvironment(strings.Fields(test.environ)); err != nil {
			got = err.Error()
		} else if c != nil {
			got = c.endpoint.String()
		}
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.environ, got, test.want)
		}
	}
}

func newTracer(t *testing.T) *Tracer {
	t.Helper()
	c, err := ReadEnvironment([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_BSP_MAX_QUEUE_SIZE=2"})
	if err != nil {
		t.Fatal(err)
	}
	tracer, err := New(*c, "a", "b", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func TestUnsampledRequestAllocatesNothing(t *testing.T) {
	tracer, ctx, parents := newTracer(t), context.Background(), []string{sampled[:53] + "00"}
	allocations := testing.AllocsPerRun(100, func() {
		own, span := tracer.Start(ctx, "grpc", parents)
		own, trip := tracer.BeginRoundTrip(own, time.Time{})
		trip.End("redis", "take", 1, nil)
		span.End()
		if own != ctx || tracer.SpanOf(own) != nil {
			t.Error("it has a context of its own")
		}
	})
	if allocations > 0 {
		t.Errorf("%v allocations, want none", allocations)
	}
}

func TestTracerDropsWhatDoesNotFit(t *testing.T) {
	tracer := newTracer(t)
	for range 5 {
		_, span := tracer.Start(context.Background(), "grpc", []string{sampled})
		for range 2 * maxDecisions {
			span.Add(Decision{Result: Allowed})
		}
		span.End()
	}
	if tracer.Dropped.Load() != 3 || len(tracer.queue) != 2 {
		t.Errorf("%d dropped, %d queued, want 3 and 2", tracer.Dropped.Load(), len(tracer.queue))
	}
	if r := <-tracer.queue; len(r.events) != maxDecisions || r.dropped != maxDecisions {
		t.Errorf("%d events, %d dropped, want %d of each", len(r.events), r.dropped, maxDecisions)
	}
}

func TestSpanTellsTheDecisionThatMatters(t *testing.T) {
	tracer := newTracer(t)
	for want, ds := range map[string][]Decision{
		"b": {{Rule: "a", Result: Allowed, HasLimit: true, Remaining: 1}, {Rule: "b", Result: Denied, HasLimit: true, Remaining: 5}, {Rule: "c", Result: Denied}},
		"c": {{Rule: "a", Result: Allowed}, {Rule: "b", Result: Allowed, HasLimit: true, Remaining: 7}, {Rule: "c", Result: Allowed, HasLimit: true, Remaining: 3}},
	} {
		s := &Span{tracer: tracer, decisions: ds}
		if got := s.tightest().Rule; got != want {
			t.Errorf("rule %s of %v, want %s", got, ds, want)
		}
	}
}
