package accesslog

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/server/recording"
)

// A format is one kind of log.
type format struct {
	name  string
	parse func(s *source, text []byte, l *line) bool
	atEnd bool      // its times are those of the end of requests
	marks []string  // of a JSON log: names by which it is told apart
	json  jsonNames // of a JSON log: where it has what
}

const recordingFormat = "recording"

// The formats are tried in this order.
var formats = []format{
	{name: recordingFormat, parse: parseRecording},
	{name: "traefik", parse: parseJSON, marks: []string{"StartUTC"}, json: jsonNames{
		time: "StartUTC", fields: [numFields]string{
			"ClientHost", "ClientUsername", "RequestMethod", "RequestPath", "RequestHost", "DownstreamStatus", "request_User-Agent", "request_Referer",
		},
	}},
	{name: "kong", parse: parseJSON, marks: []string{"started_at", "latencies"}, json: jsonNames{
		time: "started_at", fields: [numFields]string{
			"client_ip", "consumer.username", "request.method", "request.uri", "request.headers.host", "response.status",
			"request.headers.user-agent", "request.headers.referer",
		},
	}},
	{name: "caddy", parse: parseJSON, marks: []string{"ts", "request"}, atEnd: true, json: jsonNames{
		time: "ts", duration: "duration", unit: time.Second, fields: [numFields]string{
			"request.client_ip", "user_id", "request.method", "request.uri", "request.host", "status",
			"request.headers.User-Agent", "request.headers.Referer",
		},
	}},
	{name: "envoy", parse: parseJSON, marks: []string{"start_time"}, json: jsonNames{
		time: "start_time", fields: [numFields]string{
			"downstream_remote_address", "user", "method", "path", "authority", "response_code", "user_agent", "referer",
		},
	}},
	{name: "nginx", parse: parseJSON, marks: []string{"remote_addr"}, atEnd: true, json: jsonNames{
		time: "msec", times: []string{"time_iso8601", "time_local", "time", "timestamp", "@timestamp"},
		duration: "request_time", unit: time.Second, request: "request", fields: [numFields]string{
			"remote_addr", "remote_user", "request_method", "request_uri", "host", "status", "http_user_agent", "http_referer",
		},
	}},
	{name: "json", parse: parseJSON, json: jsonNames{
		time: "time", fields: [numFields]string{"address", "user", "method", "uri", "host", "status", "user_agent", "referer"},
	}},
	{name: "cloudfront", parse: parseCloudFront, atEnd: true},
	{name: "alb", parse: parseALB},
	{name: "haproxy", parse: parseHAProxy},
	{name: "combined", parse: parseCombined, atEnd: true},
}

// FormatNames returns the names of all formats.
func FormatNames() (names []string) {
	for i := range formats {
		names = append(names, formats[i].name)
	}
	return names
}

// HasFormat reports whether there is a format of that name.
func HasFormat(name string) bool { return formatNamed(name) != nil }

func formatNamed(name string) *format {
	if i := slices.Index(FormatNames(), name); i >= 0 {
		return &formats[i]
	}
	return nil
}

// detectFormat returns the first format that fits a line, or nil. Of JSON logs the names of a line decide, rather than
// whether it can be parsed: its time may have a name of the user's.
func (s *source) detectFormat(text []byte) *format {
	for i := range formats {
		f := &formats[i]
		fits := f.isJSON() && isObjectWith(text, f.marks) || !f.isJSON() && f.parse(s, text, &line{})
		if fits {
			return f
		}
	}
	return nil
}

func (f *format) isJSON() bool { return f.json.time != "" }

// Recordings: each line is kept as it is, for recording.Parse.

func parseRecording(_ *source, text []byte, l *line) (ok bool) {
	l.time, ok = recording.Time(text)
	return ok
}

// Combined: 203.0.113.9 - ada [02/Jan/2006:15:04:05 -0700] "GET /path HTTP/1.1" 200 512 "referer" "agent",
// of nginx and Apache. Common, which ends before the referer, is understood, too, and so is what Traefik
// appends: the last part is the duration, such as 12ms. So does rt=0.012.

func parseCombined(s *source, text []byte, l *line) bool {
	space := bytes.IndexByte(text, ' ')
	open := bytes.IndexByte(text, '[')
	if space <= 0 || open < space || open+30 > len(text) {
		return false
	}
	l.fields[fieldAddress] = text[:space]
	if middle := text[space+1 : open]; len(middle) > 4 || len(middle) == 4 && string(middle) != "- - " {
		if i := bytes.IndexByte(middle, ' '); i >= 0 {
			l.fields[fieldUser] = bytes.TrimRight(middle[i+1:], " ")
		}
	}
	date, rest := text[open+1:open+27], text[open+27:]
	if rest[0] != ']' || !s.cachedTime(date, l) {
		return false
	}
	parts := splitter{rest: bytes.TrimPrefix(rest[1:], []byte(" ")), by: ' '}
	l.setRequest(parts.next())
	l.fields[fieldStatus] = parts.next()
	if s.wants.rest {
		parts.next()
		l.fields[fieldReferer], l.fields[fieldUserAgent] = parts.next(), parts.next()
	}
	l.duration, l.timed = lastDuration(rest)
	return len(l.fields[fieldStatus]) == 3
}

// cachedTime parses the date of a line, unless it is that of the line before.
func (s *source) cachedTime(date []byte, l *line) (ok bool) {
	if string(date) == string(s.lastDate[:]) {
		l.time = s.lastTime
		return true
	}
	if l.time, ok = logTime(date); ok {
		copy(s.lastDate[:], date)
		s.lastTime = l.time
	}
	return ok
}

// lastDuration returns the duration at the end of a line, if it has one.
func lastDuration(text []byte) (d int64, ok bool) {
	n := len(text)
	if n == 0 || text[n-1] == '"' { // as most lines end
		return 0, false
	}
	last := text[bytes.LastIndexByte(text, ' ')+1:]
	if ms, ok := bytes.CutSuffix(last, []byte("ms")); ok {
		return durationOf(ms, time.Millisecond)
	}
	if seconds, ok := bytes.CutPrefix(last, []byte("rt=")); ok {
		return durationOf(seconds, time.Second)
	}
	return 0, false
}

// ALB of AWS: https 2026-01-02T15:04:05.123456Z app/name 203.0.113.9:4711 … "GET https://host:443/path HTTP/1.1" "agent" …
// The time of the second part is that of the response; the 22nd is that of the request.

var albKinds = []string{"http", "https", "h2", "grpcs", "ws", "wss"}

func parseALB(_ *source, text []byte, l *line) (ok bool) {
	parts := splitter{rest: text, by: ' '}
	isKind := slices.Contains(albKinds, string(parts.next()))
	end, isTime := isoTime(parts.next())
	parts.next()
	l.setAddress(parts.next())
	parts.skip(4)
	l.fields[fieldStatus] = parts.next()
	parts.skip(3)
	l.setRequest(parts.next())
	l.fields[fieldUserAgent] = parts.next()
	parts.skip(7)
	if l.time, ok = isoTime(parts.next()); !ok {
		l.time = end // an old line, which ends earlier
	}
	return isKind && isTime
}

// HAProxy: … 203.0.113.9:4711 [02/Jan/2006:15:04:05.123] frontend backend/server timers status bytes … "GET /path HTTP/1.1",
// after whatever syslog puts before it.

// haproxyDate returns where the date in brackets begins, or -1.
func haproxyDate(text []byte) int {
	for from := 0; ; {
		i := bytes.Index(text[from:], []byte(" ["))
		if i < 0 || from+i+27 > len(text) {
			return -1
		}
		if from += i + 2; text[from+20] == '.' && text[from+24] == ']' {
			return from
		}
	}
}

func parseHAProxy(_ *source, text []byte, l *line) (ok bool) {
	at := haproxyDate(text)
	if at < 0 {
		return false
	}
	if l.time, ok = logTime(text[at : at+24]); !ok {
		return false
	}
	before := text[:at-2]
	l.setAddress(before[bytes.LastIndexByte(before, ' ')+1:])
	parts := splitter{rest: bytes.TrimLeft(text[at+25:], " "), by: ' '}
	parts.skip(3)
	l.fields[fieldStatus] = parts.next()
	if i := bytes.Index(text, []byte(` "`)); i >= 0 {
		quoted := splitter{rest: text[i+1:], by: ' '}
		l.setRequest(quoted.next())
	}
	return len(l.fields[fieldStatus]) == 3
}

// CloudFront: parts with tabs between them, whose names are in a comment above them.

var columnsComment = []byte("#Fields:")

var cloudFrontFields = strings.Fields("date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status " +
	"cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken")

var fieldOfColumn = map[string]field{
	"c-ip": fieldAddress, "cs-method": fieldMethod, "x-host-header": fieldHost, "sc-status": fieldStatus,
	"cs(Referer)": fieldReferer, "cs(User-Agent)": fieldUserAgent,
}

func parseCloudFront(s *source, text []byte, l *line) bool {
	if s.columns == nil {
		s.columns = cloudFrontFields
	}
	parts := splitter{rest: text, by: '\t'}
	var date, stem, query []byte
	for _, name := range s.columns {
		switch part := parts.next(); name {
		case "date":
			date = part
		case "time":
			if len(date) == 10 && len(part) == 8 {
				l.time, _ = isoTime(append(append(append(append(s.scratch[:0], date...), 'T'), part...), 'Z'))
			}
		case "timestamp", "timestamp(ms)":
			l.time, _ = anyTime(part)
		case "time-taken":
			l.duration, l.timed = durationOf(part, time.Second)
		case "cs-uri-stem":
			stem = part
		case "cs-uri-query":
			query = part
		default:
			if f, ok := fieldOfColumn[name]; ok {
				l.fields[f] = part
			}
		}
	}
	l.fields[fieldURI] = stem
	if len(query) > 0 && string(query) != "-" {
		s.scratch = append(append(append(s.scratch[:0], stem...), '?'), query...)
		l.fields[fieldURI] = s.scratch
	}
	return l.time != 0
}

// JSON logs: one object in a line.

// jsonNames say where a JSON log has what. Dots separate the names of nested objects.
type jsonNames struct {
	time, duration string
	times          []string      // used if there is none of that name
	unit           time.Duration // of the duration
	request        string        // the request line, used if there is no method
	fields         [numFields]string
}

// isObjectWith reports whether a line is an object with these names.
func isObjectWith(text []byte, names []string) bool {
	text = bytes.TrimSpace(text)
	return len(text) > 1 && text[0] == '{' && text[len(text)-1] == '}' &&
		!slices.ContainsFunc(names, func(name string) bool { return !bytes.Contains(text, []byte(`"`+name+`"`)) })
}

// setJSON prepares the source to read a JSON log.
func (s *source) setJSON(names jsonNames) {
	for name, path := range s.options.Names {
		switch f, problem := fieldNamed(name); {
		case name == "time":
			names.time, names.times = path, nil
		case problem == "":
			names.fields[f] = path
		}
	}
	s.times = len(names.times)
	paths := slices.Concat([]string{names.time, names.duration}, names.fields[:fieldPath], []string{names.request})
	s.json = newJSONReader(slices.Concat(paths, names.times, s.wants.others))
}

func parseJSON(s *source, text []byte, l *line) (ok bool) {
	if !s.json.read(text) {
		return false
	}
	at, duration, values := s.json.values[0], s.json.values[1], s.json.values[2:]
	fields, request, more := values[:fieldPath], values[fieldPath], values[fieldPath+1:]
	for i := 0; at == nil && i < s.times; i++ {
		at = more[i]
	}
	if l.time, ok = anyTime(at); !ok {
		return false
	}
	if unit := s.format.json.unit; unit > 0 && duration != nil {
		l.duration, l.timed = durationOf(duration, unit)
	}
	copy(l.fields[:], fields)
	if l.fields[fieldMethod] == nil && request != nil {
		l.setRequest(request)
	}
	l.setAddress(l.fields[fieldAddress])
	l.others = more[s.times:]
	return true
}
