// Package accesslog reads the access logs of proxies and of web servers, and the recordings of the
// daemon, as requests in the order of time. It is fast, because it allocates nothing for a line, and
// bounded: a log may be larger than memory, and a line may contain anything.
package accesslog

import (
	"bytes"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/spelling"
)

// A line is what a format understands of one line. Its texts are parts of the line, or of a scratch buffer.
type line struct {
	time     int64 // Unix nanoseconds, of the start, or of the end if the format says so
	duration int64 // nanoseconds
	timed    bool  // the line has a duration, which may be 0
	fields   [numFields][]byte
	others   [][]byte // of JSON: the fields that were asked for by their own names
}

// A field is something that most logs have.
type field int

const (
	fieldAddress field = iota
	fieldUser
	fieldMethod
	fieldURI // with the query
	fieldHost
	fieldStatus
	fieldUserAgent
	fieldReferer
	fieldPath // the URI without the query; no parser sets it
	numFields
)

// Fields are the names of fields that all formats have, in the order of their numbers.
var Fields = []string{"address", "user", "method", "uri", "host", "status", "user_agent", "referer", "path"}

// fieldOfKey are the keys of descriptors that need no mapping.
var fieldOfKey = map[string]field{
	"address": fieldAddress, "remote_address": fieldAddress, "remote_addr": fieldAddress, "client_ip": fieldAddress, "ip": fieldAddress,
	"user": fieldUser, "remote_user": fieldUser,
	"method": fieldMethod, ":method": fieldMethod, "path": fieldPath, ":path": fieldURI, "uri": fieldURI,
	"host": fieldHost, ":authority": fieldHost, "status": fieldStatus, "user_agent": fieldUserAgent, "user-agent": fieldUserAgent,
	"referer": fieldReferer,
}

// HasDefault reports whether the value of an entry with this key is found without a mapping.
func HasDefault(key string) bool {
	_, ok := fieldOfKey[key]
	return ok
}

// fieldNamed returns the field of that name, or an error text with the nearest.
func fieldNamed(name string) (field, string) {
	if i := slices.Index(Fields, name); i >= 0 {
		return field(i), ""
	}
	if near := spelling.Similar(name, Fields); near != "" {
		return 0, "did you mean " + near + "?"
	}
	return 0, "it has " + strings.Join(Fields, ", ")
}

// value returns the text of a field; empty if the line has none.
func (l *line) value(f field) []byte {
	if f == fieldPath {
		path, _, _ := bytes.Cut(l.fields[fieldURI], []byte("?"))
		return path
	}
	v := l.fields[f]
	if len(v) == 1 && v[0] == '-' {
		return nil
	}
	return v
}

// setRequest sets method and URI from a request line such as "GET /path HTTP/1.1". Proxies may
// have the URI with scheme and host.
func (l *line) setRequest(request []byte) {
	i := bytes.IndexByte(request, ' ')
	if i < 0 {
		return // a bad request, which has neither
	}
	uri := request[i+1:]
	if j := bytes.LastIndexByte(uri, ' '); j >= 0 {
		uri = uri[:j]
	}
	l.fields[fieldMethod] = request[:i]
	if j := bytes.Index(uri, []byte("://")); j > 0 && uri[0] != '/' {
		rest := uri[j+3:]
		slash := bytes.IndexByte(rest, '/')
		if slash < 0 {
			slash = len(rest)
		}
		l.fields[fieldHost], uri = rest[:slash], rest[slash:]
	}
	l.fields[fieldURI] = uri
}

// setAddress sets the client's address from address:port.
func (l *line) setAddress(text []byte) {
	i := bytes.LastIndexByte(text, ':')
	if i > 0 && (text[i-1] == ']' || bytes.IndexByte(text, ':') == i && bytes.IndexByte(text, '.') > 0) {
		text = text[:i]
	}
	if n := len(text); n > 1 && text[0] == '[' && text[n-1] == ']' {
		text = text[1 : n-1]
	}
	l.fields[fieldAddress] = text
}

// A splitter cuts a line at spaces, or tabs. A part may be in double quotes.
type splitter struct {
	rest []byte
	by   byte
}

// next returns the next part without its quotes, and nil at the end.
func (s *splitter) next() []byte {
	if len(s.rest) == 0 {
		return nil
	}
	if s.rest[0] == '"' && s.by == ' ' {
		return s.quoted()
	}
	i := bytes.IndexByte(s.rest, s.by)
	if i < 0 {
		i = len(s.rest)
	}
	return s.cut(0, i, i+1)
}

// quoted returns a part in quotes. A quote within it has a backslash before it.
func (s *splitter) quoted() []byte {
	end := 1
	for {
		i := bytes.IndexByte(s.rest[end:], '"')
		if i < 0 {
			return s.cut(1, len(s.rest), len(s.rest))
		}
		end += i
		if !isEscaped(s.rest[:end]) {
			return s.cut(1, end, end+2)
		}
		end++
	}
}

// isEscaped reports whether what follows the text is escaped: an odd number of backslashes end it.
func isEscaped(before []byte) bool {
	n := len(before)
	if n == 0 || before[n-1] != '\\' { // as nearly always
		return false
	}
	return (n-len(bytes.TrimRight(before, `\`)))%2 == 1
}

func (s *splitter) cut(from, to, next int) []byte {
	part := s.rest[from:to:to]
	s.rest = s.rest[min(next, len(s.rest)):]
	return part
}

// skip skips n parts.
func (s *splitter) skip(n int) {
	for range n {
		s.next()
	}
}
