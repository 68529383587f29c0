package grpcapi_test

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
	"github.com/penstock-io/penstock/server/grpcapi"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// TestTranscripts plays the stories in testdata on both stores, through Envoy's
// own client. A story is made of lines like these:
//
//	# what the story is about
//	rules
//	    the text of a rule file, or nothing for no rules
//	options headers metadata shadow
//	at 12:30:00
//	ask house user=ada
//	    OK
//	    OK 2/HOUR remaining=1 reset=1800
//
// Behind the domain, each word of a question is a descriptor: entries with commas
// between them, and after semicolons hits:3, back, or limit:5/2*HOUR. A word
// hits:3 is the request's own, "" is an empty domain, and - a descriptor without
// entries. The first line of an answer is about the whole, the next ones are
// about one descriptor each, then come headers and metadata.
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

// runTranscript plays one story.
func runTranscript(t *testing.T, store penstock.Store, text string) {
	p := transcript{t: t, store: store}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	asked := 0
	for i := 0; i < len(lines); {
		p.line = i + 1
		line := lines[i]
		var block []string
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "    "); i++ {
			block = append(block, strings.TrimPrefix(lines[i], "    "))
		}
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "#":
		case "rules":
			p.rules, p.client = strings.Join(block, "\n"), nil
		case "options":
			p.options, p.client = strings.Fields(rest), nil
		case "at":
			p.setTime(rest)
		case "ask":
			asked++
			p.request(strings.Fields(rest), strings.Join(block, "\n"))
		default:
			t.Fatalf("line %d: want rules, options, at or ask, got %q", p.line, line)
		}
	}
	if asked == 0 {
		t.Fatal("nothing was asked")
	}
}

// A transcript is how far a story has been played.
type transcript struct {
	t       *testing.T
	store   penstock.Store
	line    int
	rules   string
	options []string
	client  pb.RateLimitServiceClient
}

func (p *transcript) setTime(clock string) {
	at, err := time.Parse(time.TimeOnly, clock)
	if err != nil {
		p.t.Fatalf("line %d: %v", p.line, err)
	}
	setClock(noon.Truncate(24 * time.Hour).Add(at.Sub(at.Truncate(24 * time.Hour))))
}

func (p *transcript) request(words []string, want string) {
	p.t.Helper()
	if p.client == nil {
		p.client = p.start()
	}
	var got string
	response, err := p.client.ShouldRateLimit(p.t.Context(), p.parseRequest(words))
	if err != nil {
		s := status.Convert(err)
		got = fmt.Sprintf("error %v: %s", s.Code(), s.Message())
	} else {
		got = responseText(response)
	}
	if got != want {
		p.t.Errorf("line %d: ask %s\ngot\n%s\nwant\n%s", p.line, strings.Join(words, " "), got, want)
	}
}

// start opens a door by the rules and options so far. State stays.
func (p *transcript) start() pb.RateLimitServiceClient {
	o := grpcapi.Options{Response: rlsproto.Options{Now: clockTime}}
	var jo engine.Options
	for _, option := range p.options {
		switch option {
		case "headers":
			o.Response.Headers = true
		case "names":
			o.Response.LimitHeader, o.Response.RemainingHeader, o.Response.ResetHeader = "X-Limit", "X-Remaining", "X-Reset"
		case "metadata":
			o.Response.DynamicMetadata = true
		case "shadow":
			jo.Shadow = true
		default:
			p.t.Fatalf("line %d: no option %q", p.line, option)
		}
	}
	if p.rules == "" {
		return newClient(p.t, engine.New(p.store, &jo), &o)
	}
	return newClient(p.t, newEngine(p.t, p.store, p.rules, &jo), &o)
}

func (p *transcript) parseRequest(words []string) *pb.RateLimitRequest {
	m := &pb.RateLimitRequest{Domain: strings.Trim(words[0], `"`)}
	for _, word := range words[1:] {
		if hits, ok := strings.CutPrefix(word, "hits:"); ok {
			m.HitsAddend = uint32(p.parseNumber(hits))
			continue
		}
		m.Descriptors = append(m.Descriptors, p.parseDescriptor(word))
	}
	return m
}

func (p *transcript) parseDescriptor(word string) *common.RateLimitDescriptor {
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
			d.HitsAddend = wrapperspb.UInt64(p.parseNumber(value))
		case "back":
			d.IsNegativeHits = true
		case "limit":
			d.Limit = p.parseLimit(value)
		default:
			p.t.Fatalf("line %d: no option %q", p.line, option)
		}
	}
	return d
}

// parseLimit reads an override such as 5/HOUR, 5/2*HOUR or 5/9 for a unit by its
// number.
func (p *transcript) parseLimit(text string) *common.RateLimitDescriptor_RateLimitOverride {
	requests, unit, _ := strings.Cut(text, "/")
	o := &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(p.parseNumber(requests))}
	if times, rest, ok := strings.Cut(unit, "*"); ok {
		o.UnitMultiplier = wrapperspb.UInt32(uint32(p.parseNumber(times)))
		unit = rest
	}
	if n, ok := typev3.RateLimitUnit_value[unit]; ok {
		o.Unit = typev3.RateLimitUnit(n)
	} else {
		o.Unit = typev3.RateLimitUnit(p.parseNumber(unit))
	}
	return o
}

func (p *transcript) parseNumber(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		p.t.Fatalf("line %d: %v", p.line, err)
	}
	return n
}

// responseText returns a response as transcripts have it.
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

// metadataText returns a value with its fields in order, which JSON's printer
// does not promise.
func metadataText(v *structpb.Value) string { return fmt.Sprint(v.AsInterface()) }
