package accesslog

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// One line of each format, as the proxy writes it, and what is understood.
var lines = []struct {
	format, line string
	time         string // of the start
	values       string // address, user, method, path, uri, host, status, user_agent
}{
	{
		"combined", `203.0.113.9 - - [01/Nov/2026:12:00:01 +0100] "GET /a?b=1 HTTP/1.1" 200 512 "https://example.com/" "curl/8"`,
		"2026-11-01T11:00:01Z", "203.0.113.9||GET|/a|/a?b=1||200|curl/8",
	},
	{
		"combined", `2001:db8::1 - ada lovelace [01/Nov/2026:12:00:01 -0030] "POST / HTTP/2.0" 429 - "-" "quote \" in it"`,
		"2026-11-01T12:30:01Z", `2001:db8::1|ada lovelace|POST|/|/||429|quote \" in it`,
	},
	{
		"combined", `203.0.113.9 - - [01/Nov/2026:12:00:01 +0000] "\x16\x03\x01" 400 0 "-" "-"`,
		"2026-11-01T12:00:01Z", "203.0.113.9||||||400|",
	},
	{
		"combined", `203.0.113.9 - - [01/Nov/2026:12:00:01 +0000] "GET /common HTTP/1.0" 200 5`,
		"2026-11-01T12:00:01Z", "203.0.113.9||GET|/common|/common||200|",
	},
	{
		"combined", `203.0.113.9 - - [01/Nov/2026:12:00:01 +0000] "GET /traefik HTTP/1.1" 200 5 "-" "-" 7 "shop@docker" "http://10.0.0.1:80" 250ms`,
		"2026-11-01T12:00:00.75Z", "203.0.113.9||GET|/traefik|/traefik||200|",
	},
	{
		"combined", `203.0.113.9 - - [01/Nov/2026:12:00:01 +0000] "GET /nginx HTTP/1.1" 200 5 "-" "-" rt=1.5`,
		"2026-11-01T11:59:59.5Z", "203.0.113.9||GET|/nginx|/nginx||200|",
	},
	{
		"traefik", `{"ClientAddr":"203.0.113.9:4711","ClientHost":"203.0.113.9","ClientUsername":"-","DownstreamStatus":200,"Duration":250000000,"RequestHost":"shop.example","RequestMethod":"GET","RequestPath":"/a?b=1","StartUTC":"2026-11-01T12:00:00.123456789Z","request_User-Agent":"curl/8","time":"2026-11-01T12:00:00Z"}`,
		"2026-11-01T12:00:00.123456789Z", "203.0.113.9||GET|/a|/a?b=1|shop.example|200|curl/8",
	},
	{
		"caddy", `{"level":"info","ts":1793534401.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","client_ip":"203.0.113.9","method":"GET","host":"shop.example","uri":"/a?b=\"1\"","headers":{"User-Agent":["curl/8","x"]}},"user_id":"ada","duration":0.25,"size":5,"status":200}`,
		"2026-11-01T12:00:01.25Z", `203.0.113.9|ada|GET|/a|/a?b="1"|shop.example|200|curl/8`,
	},
	{
		"kong", `{"latencies":{"request":9},"client_ip":"203.0.113.9","started_at":1793534400123,"consumer":{"username":"ada"},"request":{"method":"GET","uri":"/a?b=1","headers":{"host":"shop.example","user-agent":"curl/8"}},"response":{"status":200}}`,
		"2026-11-01T12:00:00.123Z", "203.0.113.9|ada|GET|/a|/a?b=1|shop.example|200|curl/8",
	},
	{
		"nginx", `{"msec":"1793534401.500","remote_addr":"203.0.113.9","remote_user":"ada","request_method":"GET","request_uri":"/a?b=1","host":"shop.example","status":200,"request_time":"0.250","http_user_agent":"curl/8"}`,
		"2026-11-01T12:00:01.25Z", "203.0.113.9|ada|GET|/a|/a?b=1|shop.example|200|curl/8",
	},
	{
		"nginx", `{"time_local":"01/Nov/2026:12:00:01 +0100","remote_addr":"2001:db8::1","request":"GET /a?b=1 HTTP/2.0","status":"200"}`,
		"2026-11-01T11:00:01Z", "2001:db8::1||GET|/a|/a?b=1||200|",
	},
	{
		"nginx", `{"time_iso8601":"2026-11-01T12:00:01+01:00","remote_addr":"203.0.113.9","request_time":0.5}`,
		"2026-11-01T11:00:00.5Z", "203.0.113.9|||||||",
	},
	{
		"envoy", `{"start_time":"2026-11-01T12:00:00.123Z","method":"GET","path":"/a?b=1","response_code":200,"duration":12,"downstream_remote_address":"[2001:db8::1]:4711","authority":"shop.example","user_agent":"curl/8"}`,
		"2026-11-01T12:00:00.123Z", "2001:db8::1||GET|/a|/a?b=1|shop.example|200|curl/8",
	},
	{
		"alb", `h2 2026-11-01T12:00:01.500000Z app/shop/50dc6c495c0c9188 203.0.113.9:4711 10.0.0.1:80 0.001 0.048 0.000 200 200 34 366 "GET https://shop.example:443/a?b=1 HTTP/2.0" "curl/8" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:eu:1:targetgroup/x/7 "Root=1-58337281" "shop.example" "arn:aws:acm:eu:1:certificate/1" 1 2026-11-01T12:00:01.450123Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-"`,
		"2026-11-01T12:00:01.450123Z", "203.0.113.9||GET|/a|/a?b=1|shop.example:443|200|curl/8",
	},
	{
		"cloudfront", "2026-11-01\t12:00:01\tFRA2\t2390\t203.0.113.9\tGET\td111.cloudfront.net\t/a\t200\t-\tcurl/8\tb=1\t-\tHit\tid==\tshop.example\thttps\t23\t0.250",
		"2026-11-01T12:00:00.75Z", "203.0.113.9||GET|/a|/a?b=1|shop.example|200|curl/8",
	},
	{
		"haproxy", `Nov  1 12:00:01 lb haproxy[14389]: 203.0.113.9:4711 [01/Nov/2026:12:00:00.123] http-in~ shop/web1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop.example} {} "GET /a?b=1 HTTP/1.1"`,
		"2026-11-01T12:00:00.123Z", "203.0.113.9||GET|/a|/a?b=1||200|",
	},
}

var wantEntries = []Entry{
	{"address", ""}, {"user", ""}, {"method", ""}, {"path", ""}, {"uri", ""}, {"host", ""}, {"status", ""}, {"user_agent", ""},
}

func TestReaderUnderstandsFormats(t *testing.T) {
	for _, c := range lines {
		got := read(t, &Options{Entries: wantEntries}, c.line+"\n")
		if want := []string{c.time + " " + c.values}; !slices.Equal(got.requests, want) || got.Format != c.format || got.Bad != 0 {
			t.Errorf("%s\ngot  %s %q\nwant %s %q", c.line, got.Format, got.requests, c.format, want)
		}
	}
}

func TestReaderUsesNamesOfColumns(t *testing.T) {
	log := "#Version: 1.0\n#Fields: timestamp(ms) c-ip cs-method\n1793534400123\t203.0.113.9\tGET\n"
	got := read(t, &Options{Format: "cloudfront", Entries: wantEntries[:3]}, log)
	if want := []string{"2026-11-01T12:00:00.123Z 203.0.113.9||GET"}; !slices.Equal(got.requests, want) || got.Lines != 1 {
		t.Errorf("got %q of %d lines, want %q of 1", got.requests, got.Lines, want)
	}
}

func TestReaderNeedsNoNamesOfColumns(t *testing.T) {
	for _, c := range lines {
		if c.format != "cloudfront" {
			continue
		}
		if got := read(t, &Options{}, "#Fields:\n"+c.line+"\n"); len(got.requests) != 1 || got.Format != c.format {
			t.Errorf("got %q as %q, want one request", got.requests, got.Format)
		}
	}
}

// What a proxy logs of a client may be nested; a line with the end of another is not taken for one.
func TestReaderOfJSONThatIsNestedOrBroken(t *testing.T) {
	const good = `{"time":"2026-11-01T12:00:00Z","address":"203.0.113.9","x":`
	for text, want := range map[string]int{
		good + strings.Repeat(`{"a":`, 5000) + "[1]" + strings.Repeat("}", 5001):  1,
		good + strings.Repeat("[", 5000) + "{}" + strings.Repeat("]", 5000) + "}": 1,
		good + "[1]}":                1,
		good + "[1}}":                0,
		good + `{"a":1]}`:            0,
		good + "1]":                  0,
		good + "1} and so on":        0,
		good + "1} and so on" + "\t": 0,
	} {
		if got := read(t, &Options{Format: "json", Entries: wantEntries[:1]}, text+"\n"); len(got.requests) != want {
			t.Errorf("%.100s: got %d requests, want %d", text, len(got.requests), want)
		}
	}
}

func TestReaderUsesNamesGiven(t *testing.T) {
	o := &Options{
		Names:   map[string]string{"time": "when", "address": "peer.ip"},
		Entries: []Entry{{"ip", ""}, {"tenant", "field:labels.tenant"}, {"generic_key", "all"}, {"net", "address:peer.ip6"}},
	}
	got := read(t, o, `{"when":1793534400,"peer":{"ip":"203.0.113.9","ip6":"2001:db8:1:2:3::4"},"labels":{"tenant":"t1"}}`+"\n")
	if want := []string{"2026-11-01T12:00:00Z 203.0.113.9|t1|all|2001:db8:1:2::/64"}; !slices.Equal(got.requests, want) || !got.Whole {
		t.Errorf("got %q, whole %v, want %q", got.requests, got.Whole, want)
	}
}

func TestReaderExplainsWhatALogLacks(t *testing.T) {
	for entry, want := range map[Entry]string{
		{"tenant", "field:adress"}:      `a log of the format combined has no field "adress": did you mean address?`,
		{"tenant", "field:x-tenant-id"}: `has no field "x-tenant-id": it has address, user, `,
		{"tenant", "address:proxy"}:     `has no field "proxy"`,
	} {
		_, err := Open([]string{write(t, "access.log", lines[0].line)}, &Options{Entries: []Entry{entry}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", entry, err, want)
		}
	}
}

// nginx writes rt=0.000 for what takes less than a millisecond, and rt=- for nothing.
func TestReaderKnowsDurationsOfZero(t *testing.T) {
	for end, want := range map[string]int64{"rt=0.000": 1, "rt=0.012": 1, "0ms": 1, "rt=-": 0, "rt=-1": 0, "rt=NaN": 0, `"curl"`: 0} {
		line := `203.0.113.9 - - [01/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 3 "-" "curl" ` + end + "\n"
		if got := read(t, &Options{}, line); got.Timed != want {
			t.Errorf("%s: %d lines have a duration, want %d", end, got.Timed, want)
		}
	}
}

// Lines are sorted within a window, files are merged, and gzip is unpacked.
func TestReaderMergesByTime(t *testing.T) {
	even, odd := "", ""
	for i := 0; i < 3000; i += 2 {
		even += lineAt(i ^ 4) // out of order
		odd += lineAt(i + 1)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(odd))
	_ = z.Close()
	got := readPaths(t, &Options{Entries: wantEntries[:1]}, write(t, "even.log", even), write(t, "odd.log.gz", packed.String()))
	if len(got.requests) != 3000 || !slices.IsSorted(got.requests) {
		t.Errorf("got %d requests, sorted: %v, want 3000", len(got.requests), slices.IsSorted(got.requests))
	}
}

func TestReaderCountsLinesThatAreTooLate(t *testing.T) {
	log := lineAt(100)
	for second := range 100 {
		log += strings.Repeat(lineAt(200+second), 2*defaultWindow/100)
	}
	log += lineAt(150)
	got := read(t, &Options{Entries: wantEntries[:1]}, log)
	if got.Late != 1 || !slices.IsSorted(got.requests) {
		t.Errorf("got %d late lines, sorted: %v, want 1", got.Late, slices.IsSorted(got.requests))
	}
}

// spreadOf returns the times of requests in their order, as they are spread.
func spreadOf(t *testing.T, o *Options, paths ...string) (times []time.Duration) {
	t.Helper()
	r, err := Open(paths, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC).UnixNano()
	for q := (Request{}); r.Next(&q); {
		times = append(times, time.Duration(q.Spread-noon))
	}
	return times
}

// Ten servers with two requests a second have twenty a second, which do not come as two crowds of ten.
func TestReaderSpreadsSeveralLogs(t *testing.T) {
	var paths []string
	for range 10 {
		paths = append(paths, write(t, "access.log", strings.Repeat(lineAt(0), 2)+strings.Repeat(lineAt(1), 2)))
	}
	got := spreadOf(t, &Options{}, paths...)
	for i, at := range got {
		if want := time.Duration(i) * 50 * time.Millisecond; at != want {
			t.Fatalf("request %d comes at %v, want %v", i, at, want)
		}
	}
	if len(got) != 40 {
		t.Errorf("got %d requests, want 40", len(got))
	}
}

// A second that is divided, and lines that are too late, do not come before what was already read.
func TestReaderSpreadsInOrder(t *testing.T) {
	log := ""
	for second := range 40 {
		log += strings.Repeat(lineAt(second), 700) + lineAt(max(second-6, 0))
	}
	for name, log := range map[string]string{"late": log, "divided": strings.Repeat(lineAt(1), 30_000)} {
		if got := spreadOf(t, &Options{Window: 1024}, write(t, "access.log", log)); !slices.IsSorted(got) {
			t.Errorf("%s: %d requests are not in the order of Spread", name, len(got))
		}
	}
}

// What is not understood is counted, and nothing else is lost.
func TestReaderSurvivesHostileLines(t *testing.T) {
	good := lineAt(1)
	for name, bad := range map[string]string{
		"binary":          "\x00\xff\xfe\x80garbage\x1b[2J\n",
		"no date":         `203.0.113.9 - - [] "GET / HTTP/1.1" 200 5` + "\n",
		"year 0":          strings.Replace(good, "2026", "0000", 1),
		"year 9999":       strings.Replace(good, "2026", "9999", 1),
		"no such month":   strings.Replace(good, "Nov", "Foo", 1),
		"no such hour":    strings.Replace(good, ":12:", ":99:", 1),
		"two quotes":      `203.0.113.9 - - [01/Nov/2026:12:00:00 +0000] "GET` + "\n",
		"another format":  lines[6].line + "\n",
		"as long as 1 MB": strings.Repeat("x", 1<<20) + "\n",
		"longest":         good[:len(good)-1] + strings.Repeat("x", 4*maxLine-len(good)) + "\n",
		"deep":            strings.Repeat(`{"a":`, 10000) + "\n",
	} {
		got := read(t, &Options{Entries: wantEntries}, good+bad+good)
		if len(got.requests) != 2 || got.Bad != 1 || got.FirstBad != 2 || got.Lines != 3 {
			t.Errorf("%s: got %d requests, %d bad of %d lines, the first %d; want 2, 1 of 3, 2", name, len(got.requests), got.Bad, got.Lines, got.FirstBad)
		}
	}
}

func TestReaderReportsATruncatedFile(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 10000 {
		_, _ = z.Write([]byte(lineAt(i)))
	}
	_ = z.Close()
	got := read(t, &Options{Entries: wantEntries}, packed.String()[:packed.Len()/2])
	if got.Broken == "" || len(got.requests) == 0 {
		t.Errorf("got %d requests, broken: %q", len(got.requests), got.Broken)
	}
}

func TestReaderOfEmptyLog(t *testing.T) {
	for _, log := range []string{"", "\n", "nothing that is known\n", "no end of line"} {
		if got := read(t, &Options{}, log); len(got.requests) != 0 || got.Format != "" {
			t.Errorf("%q: got %+v", log, got)
		}
	}
}

// parseAll has every format parse a line.
func parseAll(t *testing.T, text []byte) {
	t.Helper()
	w, err := newWanted(&Options{Entries: append(wantEntries, Entry{"tenant", "field:labels.tenant"}, Entry{"net", "address:address"})})
	if err != nil {
		t.Fatal(err)
	}
	(&source{wants: w}).detectFormat(text)
	for i := range formats {
		s := &source{options: &Options{}, wants: w}
		s.setFormat(&formats[i])
		l := line{others: make([][]byte, 1)}
		if s.parse(text, &l) && len(AppendValues(nil, w.append(nil, &l))) != len(w.entries) {
			t.Errorf("%s: %q: values are missing", s.Format, text)
		}
	}
}

func TestFormatsSurviveLinesThatAreCut(t *testing.T) {
	for _, c := range lines {
		for i := range c.line {
			parseAll(t, []byte(c.line[:i]))
			parseAll(t, []byte(c.line[i:]))
		}
	}
}

func FuzzFormats(f *testing.F) {
	for _, c := range lines {
		f.Add([]byte(c.line))
	}
	f.Fuzz(parseAll)
}

func lineAt(second int) string {
	at := time.Date(2026, 11, 1, 12, 0, second, 0, time.UTC)
	return fmt.Sprintf(`203.0.113.9 - - [%s] "GET / HTTP/1.1" 200 5 "-" "-"`+"\n", at.Format("02/Jan/2006:15:04:05 -0700"))
}

type result struct {
	Report
	requests []string
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, o *Options, text string) result {
	t.Helper()
	return readPaths(t, o, write(t, "access.log", text))
}

func readPaths(t *testing.T, o *Options, paths ...string) (all result) {
	t.Helper()
	r, err := Open(paths, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for q := (Request{}); r.Next(&q); {
		values := ""
		if !q.Recorded {
			values = strings.Join(AppendValues(nil, q.Data), "|")
		}
		all.requests = append(all.requests, time.Unix(0, q.Time).UTC().Format(time.RFC3339Nano)+" "+values)
	}
	all.Report = r.Reports()[0]
	return all
}
