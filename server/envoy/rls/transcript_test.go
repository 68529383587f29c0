package rls_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

// TestTranscripts runs the transcripts in testdata on both stores, through Envoy's own
// client. A transcript has lines like these:
//
//	# a comment
//	rules
//	    the text of a rule file, or nothing for no rules
//	options headers metadata shadow
//	at 12:30:00
//	request api user=ada
//	    OK
//	    OK 2/HOUR remaining=1 reset=1800
//
// After the domain, each word of a request is a descriptor: entries separated by commas,
// and after semicolons hits:3, refund, or limit:5/2*HOUR. A word hits:3 is the
// request's own field, "" is an empty domain, and - a descriptor without entries. The
// first line of a response is the overall code; then come one line for each descriptor,
// the headers and the metadata.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			onBothStores(t, func(t *testing.T, store penstock.Store) { runTranscript(t, store, string(text)) })
		})
	}
}

// runTranscript runs one transcript.
func runTranscript(t *testing.T, store penstock.Store, text string) {
	tr := transcript{t: t, store: store}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	requests := 0
	for i := 0; i < len(lines); {
		tr.line = i + 1
		line := lines[i]
		var block []string
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "    "); i++ {
			block = append(block, strings.TrimPrefix(lines[i], "    "))
		}
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "#":
		case "rules":
			tr.rules, tr.client = strings.Join(block, "\n"), nil
		case "options":
			tr.options, tr.client = strings.Fields(rest), nil
		case "at":
			tr.setTime(rest)
		case "request":
			requests++
			tr.request(strings.Fields(rest), strings.Join(block, "\n"))
		default:
			t.Fatalf("line %d: want rules, options, at or request, got %q", tr.line, line)
		}
	}
	if requests == 0 {
		t.Fatal("the transcript has no request")
	}
}

// A transcript is the state of a running transcript.
type transcript struct {
	t       *testing.T
	store   penstock.Store
	line    int
	rules   string
	options []string
	client  pb.RateLimitServiceClient
}

func (tr *transcript) setTime(clock string) {
	at, err := time.Parse(time.TimeOnly, clock)
	if err != nil {
		tr.t.Fatalf("line %d: %v", tr.line, err)
	}
	setClock(noon.Truncate(24 * time.Hour).Add(at.Sub(at.Truncate(24 * time.Hour))))
}

func (tr *transcript) request(words []string, want string) {
	tr.t.Helper()
	if tr.client == nil {
		tr.client = tr.start()
	}
	var got string
	response, err := tr.client.ShouldRateLimit(tr.t.Context(), tr.parseRequest(words))
	if err != nil {
		s := status.Convert(err)
		got = fmt.Sprintf("error %v: %s", s.Code(), s.Message())
	} else {
		got = responseText(response)
	}
	if got != want {
		tr.t.Errorf("line %d: request %s\ngot\n%s\nwant\n%s", tr.line, strings.Join(words, " "), got, want)
	}
}

// start returns a client of a new server with the current rules and options. The store
// stays.
func (tr *transcript) start() pb.RateLimitServiceClient {
	o := rls.Options{ServiceOptions: rls.ServiceOptions{Now: clockTime}}
	var eo engine.Options
	for _, option := range tr.options {
		switch option {
		case "headers":
			o.Headers = true
		case "names":
			o.LimitHeader, o.RemainingHeader, o.ResetHeader = "X-Limit", "X-Remaining", "X-Reset"
		case "metadata":
			o.DynamicMetadata = true
		case "shadow":
			eo.Shadow = true
		case "compat":
			eo.CompatEnvoy = true
		case "few":
			eo.MaxDescriptors, eo.MaxEntries = 64, 16
		default:
			tr.t.Fatalf("line %d: no option %q", tr.line, option)
		}
	}
	if tr.rules == "" {
		return newClient(tr.t, engine.New(tr.store, &eo), &o)
	}
	return newClient(tr.t, newEngine(tr.t, tr.store, tr.rules, &eo), &o)
}

func (tr *transcript) parseRequest(words []string) *pb.RateLimitRequest {
	m := &pb.RateLimitRequest{Domain: strings.Trim(words[0], `"`)}
	for _, word := range words[1:] {
		if hits, ok := strings.CutPrefix(word, "hits:"); ok {
			m.HitsAddend = uint32(tr.parseNumber(hits))
			continue
		}
		m.Descriptors = append(m.Descriptors, tr.parseDescriptor(word))
	}
	return m
}

func (tr *transcript) parseDescriptor(word string) *common.RateLimitDescriptor {
	parts := strings.Split(word, ";")
	d := &common.RateLimitDescriptor{}
	for _, entry := range strings.Split(parts[0], ",") {
		if entry != "-" {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
	}
	for _, option := range parts[1:] {
		name, value, _ := strings.Cut(option, ":")
		switch name {
		case "hits":
			d.HitsAddend = wrapperspb.UInt64(tr.parseNumber(value))
		case "refund":
			d.IsNegativeHits = true
		case "limit":
			d.Limit = tr.parseLimit(value)
		default:
			tr.t.Fatalf("line %d: no option %q", tr.line, option)
		}
	}
	return d
}

// parseLimit parses an override such as 5/HOUR, 5/2*HOUR, or 5/9 with the number of a
// unit.
func (tr *transcript) parseLimit(text string) *common.RateLimitDescriptor_RateLimitOverride {
	requests, unit, _ := strings.Cut(text, "/")
	o := &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(tr.parseNumber(requests))}
	if times, rest, ok := strings.Cut(unit, "*"); ok {
		o.UnitMultiplier = wrapperspb.UInt32(uint32(tr.parseNumber(times)))
		unit = rest
	}
	if n, ok := typev3.RateLimitUnit_value[unit]; ok {
		o.Unit = typev3.RateLimitUnit(n)
	} else {
		o.Unit = typev3.RateLimitUnit(tr.parseNumber(unit))
	}
	return o
}

func (tr *transcript) parseNumber(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tr.t.Fatalf("line %d: %v", tr.line, err)
	}
	return n
}

// responseText formats a response like a transcript.
func responseText(m *pb.RateLimitResponse) string {
	lines := []string{m.GetOverallCode().String()}
	for _, st := range m.GetStatuses() {
		lines = append(lines, statusText(st))
	}
	for _, h := range m.GetResponseHeadersToAdd() {
		lines = append(lines, fmt.Sprintf("%s: %s", h.GetKey(), h.GetValue()))
	}
	if m.GetDynamicMetadata() != nil {
		lines = append(lines, metadataText(structpb.NewStructValue(m.GetDynamicMetadata())))
	}
	return strings.Join(lines, "\n")
}

func statusText(st *pb.RateLimitResponse_DescriptorStatus) string {
	text := st.GetCode().String()
	if l := st.GetCurrentLimit(); l != nil {
		unit := l.GetUnit().String()
		if m := l.GetUnitMultiplier(); m != nil {
			unit = fmt.Sprintf("%d*%s", m.GetValue(), unit)
		}
		text += fmt.Sprintf(" %d/%s", l.GetRequestsPerUnit(), unit)
		if l.GetName() != "" {
			text += " " + l.GetName()
		}
	}
	if st.GetLimitRemaining() != 0 || st.GetCurrentLimit() != nil {
		text += fmt.Sprintf(" remaining=%d", st.GetLimitRemaining())
	}
	if reset := st.GetDurationUntilReset(); reset != nil {
		text += fmt.Sprintf(" reset=%d", reset.GetSeconds())
	}
	return text
}

// metadataText formats a value with its fields in order, which protojson does not
// guarantee.
func metadataText(v *structpb.Value) string { return fmt.Sprint(v.AsInterface()) }
