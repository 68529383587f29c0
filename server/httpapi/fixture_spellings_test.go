package httpapi_test

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock"
)

// A spelling is a request as a client writes it: the target, and lines of fields.
type spelling struct {
	target string
	fields []string
}

// A reader is how one kind of application finds a value in the request that reaches it.
type reader struct {
	name  string
	read  func(target string, h http.Header) string
	spell func(value string) string // the plainest spelling of a value; escaped if nil
}

// A source is what /v1/auth counts, in every spelling, and how applications read it.
type source struct {
	parameter string
	spellings []spelling
	readers   []reader
	request   func(value string) spelling // with a spelling of the value
}

var sources = []source{
	{
		parameter: "path", spellings: targets(pathSpellings), request: func(value string) spelling { return spelling{target: value} },
		readers: []reader{
			{name: "Go", read: readPathGo},
			{name: "nginx", read: readPathNginx},
			{name: "Node", read: readPathNode, spell: func(value string) string { return value }},
		},
	},
	{
		parameter: "query:q", spellings: targets(querySpellings), request: func(value string) spelling { return spelling{target: "/?q=" + value} },
		readers: []reader{
			{name: "Go", read: readQueryGo},
			{name: "Ruby", read: readQueryWith(strings.NewReplacer(";", "&"), func(name string) bool { return name == "q" })},
			{name: "PHP", read: readQueryWith(strings.NewReplacer(), isNamedInPHP)},
			{name: ".NET", read: readQueryWith(strings.NewReplacer(), func(name string) bool { return strings.EqualFold(name, "q") })},
			{name: "Express", read: readQueryWith(strings.NewReplacer(), isNamedInExpress("q"))},
		},
	},
	{
		parameter: "query:filter[user]", spellings: targets(bracketSpellings), request: func(value string) spelling { return spelling{target: "/?filter[user]=" + value} },
		readers: []reader{{name: "Express", read: readQueryWith(strings.NewReplacer(), isNamedInExpress("filter", "user"))}},
	},
	{
		parameter: "cookie:sid", spellings: cookies(cookieSpellings), request: func(value string) spelling { return cookies([]string{"sid=" + value})[0] },
		readers: []reader{
			{name: "Go", read: readCookieGo, spell: func(value string) string { return value }},
			{name: "Python", read: readCookiePython, spell: func(value string) string { return value }},
			{name: "Django", read: readCookieDjango, spell: func(value string) string { return value }},
			{name: "Starlette", read: readCookieStarlette, spell: toLatin1},
			{name: "Express", read: readCookieExpress},
			{name: "PHP", read: readCookiePHP},
			{name: "Ruby", read: readCookieRuby},
		},
	},
}

func targets(texts []string) (all []spelling) {
	for _, text := range texts {
		all = append(all, spelling{target: text})
	}
	return append(all, spelling{texts[0], []string{"X-Forwarded-Uri: /elsewhere"}}, spelling{texts[0], []string{"x_forwarded_uri: /elsewhere"}})
}

func cookies(texts []string) (all []spelling) {
	for _, text := range texts {
		all = append(all, spelling{"/", []string{"Cookie: " + text}})
	}
	return append(all, spelling{"/", []string{"Cookie: " + texts[0], "Cookie: sid=other"}})
}

var pathSpellings = []string{
	"/login", "/login?", "/login?a=b", "/login?/../x", "//login", "///login", "/./login", "/x/../login", "/../login", "/x/../../login",
	"/x//../login", "/x/%2e%2e/login", "/x/.%2E/login", "/%2elogin", "/%2e/login", "/%6cogin", "/%6Cogin", "/%4cogin", "/LOGIN", "/lo%67%69n",
	"/%2flogin", "/%2Flogin", "/x%2f..%2flogin", "/x/..%2flogin", "/%252flogin", "/%256cogin",
	"/login/", "/login//", "/login/.", "/login/./", "/login/x/..", "/login/x/../", "/login%2f", "/login/%2e", "/login/x/%2e%2e",
	"/login#", "/login#1", "/login#2", "/login#/../x", "/x#/../login", "/#/login", "/login?a#b", "/login%231", "/login%3fa",
	`/\login`, `\login`, `/.\login`, `/x\..\login`, `/x/..\login`, `/login\`, "/%5clogin", "/x%5c..%5clogin",
	"/login;", "/login;a=b", "/login;a=b/", "/login,", "/login.", "/login%20", "/login%00", "/login%00x", "/login%0a", "/login%09",
	"/lo\x00gin", "/lo\x01gin", "/lo\tgin", "/login\x7f", "/log in",
	"/%", "/login%", "/login%zz", "/login%6", "/%c0%aflogin", "/%c1%acogin", "/%e5%95%86", "/商", "/\xe5\x95%86", "/%ff", "/\xff",
	"http://x/login", "http://x//login", "http://x/x/../login", "HTTP://X/login", "http://x/login#1", "http://x:80/login", "http://a@x/login",
	"http://x", "http://x?a", "/", "//", "/.", "/..", "http:/login", "http:login", "x:/login", "*", "login", "/login:1", "/a:b/../login",
	"/login?q=\\", "/+login", "/log%2bin", "/log+in",
}

var querySpellings = []string{
	"/?q=value", "/?q=value&", "/?&q=value", "/?&&q=value&&", "/?a=b&q=value", "/?q=value&a=b", "/?q=%76alue", "/?q=val%75e", "/?q=%56alue", "/?%71=value",
	"/x?q=value", "/?q=value#1", "/?q=value#2", "/?q=val#ue", "/?q=value%23", "/?a=b#&q=value", "/#?q=value", "/?q=value;", "/?q=value;x=1", "/?q=value;x=2",
	"/?x=1;q=value", "/?x;q=value&q=other", "/?q=other&x;q=value", "/?x=1&amp;q=value", "/?q=value%3b", "/?q=value&x=1;y=2", "/?Q=value", "/?q=other&Q=value", "/?Q=other&q=value",
	"/?q=other&q=value", "/?q=value&q=value", "/?q=&q=value", "/?q&q=value", "/?q[]=value", "/?q[]=other&q=value", "/?q=other&q[]=value", "/?q[a]=value", "/?q%5b%5d=value",
	"/?+q=value", "/?%20q=value", "/?q%00x=value", "/?q=other&q%00x=value", "/?q%20=value", "/?q=", "/?q", "/?", "/", "/?=value", "/?q==value", "/?q=%3dvalue", "/??q=value", "/?q=?value",
	"/?q=a+b", "/?q=a%20b", "/?q=a%2bb", "/?q=a b", "/?q=%20value", "/?q=+value", "/?q=value+", "/?q=value%00", "/?q=value\\", "/?q=value%5c",
	"/?q=%", "/?q=%zz", "/?q=%7", "/?q=value%", "/?a=%zz&q=value", "/?q=%c1%a1", "/?q=%e5%95%86", "/?q=商", "/?q=%E5%95%86", "/?q=%ff", "/?q=\x01", "/?q=\x00", "/?q=%u0076alue",
	"/?[q]=value", "/?q=other&[q]=value", "/?[q]=value&q=other", "/?[q][]=value", "/?q=other&%5bq%5d=value",
	"http://x/?q=value", "http://x?q=value", "//x/?q=value", "/?q=value?q=other", "/?q=value,other", `/?q="value"`, "/?q='value'",
}

var bracketSpellings = []string{
	"/?filter[user]=value", "/?filter%5Buser%5D=value", "/?filter[user]=%76alue", "/?filter[page]=2&filter[user]=value", "/?a[filter][user]=other&filter[user]=value",
	"/?[filter][user]=value", "/?filter[user]=other&[filter][user]=value", "/?filter[user][]=value", "/?filter[user]=other&filter[user][]=value",
}

var cookieSpellings = []string{
	"sid=value", "sid=%76alue", "sid=v%61lue", "sid=%56alue", "sid=%2576alue", "sid= value", "sid=  value", "sid=value ", "sid=\tvalue", "sid =value", " sid=value", "sid = value",
	`sid="value"`, `sid= "value" `, `sid="%76alue"`, `sid=" value"`, `sid="value`, `sid=value"`, `sid=""value""`, `sid='value'`, `sid="val\165e"`, `sid="va\lue"`, `sid=va\lue`, "sid=%22value%22", `sid=""`, `sid="`,
	"a=b; sid=value", "a=b;sid=value", "sid=value; a=b", "sid=value;", ";sid=value", "sid=value;;", "a; sid=value", "sid; sid=value", "$Version=1; sid=value; $Path=/",
	"sid=value x", "sid=value a=b", "sid=value a=c", "a=b sid=value", "sid=other; a=b sid=value", "sid=other\tsid=value", "a=b,sid=value", "sid=other,sid=value", "sid=a,b", "sid=a%2cb",
	`a="b; sid=value"`, `a="b; sid=value; c"`, `a="sid=value"`, `a="b\"; sid=value; c="`, `a={"sid":"x"}; sid=value`, "a=https://x/?sid=1; sid=value",
	"sid=other; sid=value", "sid=value; sid=value", "sid=; sid=value", "sid=value; sid=", "SID=value", "sid=other; SID=value", "SID=value; sid=other", "s%69d=value", "sid=other; s%69d=value", "sid[]=value", "sid[a]=value",
	"sid%00x=value", "s.id=value", "sid", "sid=", "", "=value", "=sid=value", "sid==value", "sid=value=", "sid=%3dvalue",
	"sid=a+b", "sid=a%20b", "sid=a%2bb", "sid=a%2Bb", "sid=a b", "sid=100%", "sid=100%25", "sid=%zz", "sid=%25zz", "sid=%", "sid=%7", "sid=%00", "sid=value%00", "sid=value%20", "sid=%20value",
	"sid=value\u00a0", "sid=value\u2003\u3000", "sid=\u0085value", "sid=\ufeffvalue", "sid=value\xa0", "sid=\x85\xa0value", "sid=val\u00a0ue", "sid=\"value\u00a0\"", "sid=\u00a0\"value\"",
	"\u00a0sid=value", "sid=other; \u3000sid=value", "sid\u00a0=value", "sid=other; sid \u00a0=value", "sid=other; \xa0sid=value", "sid=other; sid \xa0=value", `sid[]"=value`, `sid=other; sid[]"=value`,
	"sid=商", "sid=%e5%95%86", "sid=%E5%95%86", "sid=\xff", "sid=%ff", "sid=%c1%a1", "sid=\x01", "sid=value\x7f",
}

func readPathGo(target string, _ http.Header) string {
	u, err := url.ParseRequestURI(target)
	if err != nil || u.Path == "" || u.Path != path.Clean(u.Path) { // a ServeMux redirects to the clean path
		return ""
	}
	return u.Path
}

// readPathNginx is $uri, which goes to FastCGI: decoded, without a fragment, dots and repeated slashes.
func readPathNginx(target string, _ http.Header) string {
	text, _, _ := strings.Cut(withoutHost(target), "?")
	text, _, _ = strings.Cut(text, "#")
	text, err := url.PathUnescape(text)
	if err != nil || !strings.HasPrefix(text, "/") {
		return ""
	}
	segments := strings.Split(text, "/")
	clean := path.Clean(text)
	if last := segments[len(segments)-1]; clean != "/" && strings.Trim(last, ".") == "" && len(last) < 3 {
		clean += "/"
	}
	return clean
}

// readPathNode is the path of new URL(request.url), which is not decoded.
func readPathNode(target string, _ http.Header) string {
	text, _, _ := strings.Cut(withoutHost(target), "#")
	text, _, _ = strings.Cut(text, "?")
	text = strings.NewReplacer(`\`, "/", "%2e", ".", "%2E", ".", "\t", "", "\n", "").Replace(text)
	if !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") { // the latter is a host there
		return ""
	}
	segments := strings.Split(text, "/")
	clean := path.Clean(text)
	if last := segments[len(segments)-1]; clean != "/" && strings.Trim(last, ".") == "" && len(last) < 3 {
		clean += "/"
	}
	return clean
}

func withoutHost(target string) string {
	if at := strings.Index(target, "://"); at > 0 && !strings.ContainsAny(target[:at], "/?#") {
		target = target[at+3:]
		return "/" + strings.TrimPrefix(target[strings.IndexAny(target+"/", "/?#"):], "/")
	}
	return target
}

func rawQueryOf(target string) string {
	text, _, _ := strings.Cut(target, "#")
	_, query, _ := strings.Cut(text, "?")
	return query
}

func readQueryGo(target string, _ http.Header) string {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return ""
	}
	return u.Query().Get("q")
}

// readQueryWith reads the last of the parameters.
func readQueryWith(separators *strings.Replacer, isNamed func(name string) bool) func(string, http.Header) string {
	return func(target string, _ http.Header) (value string) {
		for part := range strings.SplitSeq(separators.Replace(rawQueryOf(target)), "&") {
			name, text, _ := strings.Cut(part, "=")
			if isNamed(lenientDecoding(strings.ReplaceAll(name, "+", " "))) {
				value = lenientDecoding(strings.ReplaceAll(text, "+", " "))
			}
		}
		return value
	}
}

func isNamedInPHP(name string) bool {
	name, _, _ = strings.Cut(strings.TrimLeft(name, " "), "\x00")
	name, _, _ = strings.Cut(name, "[")
	return name == "q"
}

// isNamedInExpress returns whether a name has these parts, the first of them also in brackets, and then perhaps others.
func isNamedInExpress(parts ...string) func(name string) bool {
	named := regexp.MustCompile(`^(?:` + parts[0] + `|\[` + parts[0] + `\])` + strings.Join(append([]string{""}, parts[1:]...), `\[`) + strings.Repeat(`\]`, len(parts)-1) + `(?:\[|$)`)
	return named.MatchString
}

// lenientDecoding decodes what is an escape.
func lenientDecoding(text string) string {
	return escape.ReplaceAllStringFunc(text, func(found string) string {
		b, _ := strconv.ParseUint(found[1:], 16, 8)
		return string([]byte{byte(b)})
	})
}

var escape = regexp.MustCompile(`%[0-9a-fA-F]{2}`)

func readCookieGo(_ string, h http.Header) string {
	c, err := (&http.Request{Header: h}).Cookie("sid")
	if err != nil {
		return ""
	}
	return c.Value
}

// The pattern of Python's http.cookies.
var pythonCookie = regexp.MustCompile(`^\s*([\w!#%&'~_` + "`" + `><@,:/$*+\-.^|)(?}{=]+?)(?:\s*=\s*("(?:[^\\"]|\\.)*"|[\w!#%&'~_` + "`" + `><@,:/$*+\-.^|)(?}{=\[\]]*))?\s*(?:\s+|;|$)`)

func readCookiePython(_ string, h http.Header) (value string) {
	text := strings.Join(h["Cookie"], "; ")
	for found := pythonCookie.FindStringSubmatch(text); found != nil && text != ""; found = pythonCookie.FindStringSubmatch(text) {
		text = text[len(found[0]):]
		if found[1] == "sid" {
			value = found[2]
		}
	}
	return strings.Trim(value, `"`)
}

// splitCookies calls visit with names and values.
func splitCookies(h http.Header, visit func(name, value string)) {
	for part := range strings.SplitSeq(strings.Join(h["Cookie"], "; "), ";") {
		if name, value, ok := strings.Cut(part, "="); ok {
			visit(name, value)
		}
	}
}

// readCookieDjango trims what Unicode calls a space.
func readCookieDjango(_ string, h http.Header) (found string) {
	splitCookies(h, func(name, value string) {
		if strings.TrimSpace(strings.ToValidUTF8(name, "?")) == "sid" {
			found = strings.Trim(strings.TrimSpace(strings.ToValidUTF8(value, "?")), `"`)
		}
	})
	return found
}

// readCookieStarlette reads bytes as Latin-1.
func readCookieStarlette(_ string, h http.Header) (found string) {
	splitCookies(h, func(name, value string) {
		if strings.TrimSpace(fromLatin1(name)) == "sid" {
			found = strings.Trim(strings.TrimSpace(fromLatin1(value)), `"`)
		}
	})
	return found
}

func fromLatin1(text string) string {
	runes := make([]rune, 0, len(text))
	for _, b := range []byte(text) {
		runes = append(runes, rune(b))
	}
	return string(runes)
}

func toLatin1(text string) string {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		out = append(out, byte(r))
	}
	return string(out)
}

func readCookieExpress(_ string, h http.Header) (found string) {
	splitCookies(h, func(name, value string) {
		if found != "" || strings.TrimSpace(name) != "sid" {
			return
		}
		if value = strings.TrimSpace(value); len(value) > 1 && value[0] == '"' {
			value = value[1 : len(value)-1]
		}
		found = value
		if decoded, err := url.PathUnescape(value); err == nil {
			found = decoded
		}
	})
	return found
}

func readCookiePHP(_ string, h http.Header) (found string) {
	splitCookies(h, func(name, value string) {
		name, _, _ = strings.Cut(strings.TrimLeft(lenientDecoding(name), " "), "\x00")
		name, _, _ = strings.Cut(name, "[")
		if found == "" && name == "sid" {
			found = lenientDecoding(value)
		}
	})
	return found
}

func readCookieRuby(_ string, h http.Header) (found string) {
	splitCookies(h, func(name, value string) {
		if found == "" && strings.TrimLeft(name, " ") == "sid" {
			found = lenientDecoding(strings.ReplaceAll(value, "+", " "))
		}
	})
	return found
}

// countedKeys is a store that keeps under which keys it was asked.
type countedKeys struct {
	mu   sync.Mutex
	keys []string
}

func (c *countedKeys) store() penstock.Store {
	memory := frozenMemory()
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.keys = append(c.keys, strings.Clone(r.Key))
		return memory.Take(ctx, r)
	})
}

// take returns the keys since the last call.
func (c *countedKeys) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := c.keys
	c.keys = nil
	return keys
}

// value returns what an application reads, or "" if it reads nothing, or what it has not issued itself: a value in quotes
// or spaces.
func (r *reader) value(target string, h http.Header) string {
	value := r.read(target, h)
	if value != strings.Trim(value, ` 	"`) {
		return ""
	}
	return value
}

// A counting is what applications have read, and what was counted for it.
type counting map[string]counted

type counted struct {
	spelling spelling
	key      string
}

// add fails the test if some application reads in a request what it has read in another one that has
// another counter.
func (c counting) add(t *testing.T, readers []reader, s spelling, target string, h http.Header, key string) {
	t.Helper()
	for _, r := range readers {
		value := r.value(target, h)
		if value == "" {
			continue
		}
		other, ok := c[r.name+" "+value]
		if !ok {
			c[r.name+" "+value] = counted{s, key}
		} else if other.key != key {
			t.Errorf("%s reads %q from %q and from %q, which are counted as %q and %q", r.name, value, s, other.spelling, key, other.key)
		}
	}
}

func headerOf(s spelling) http.Header {
	h := http.Header{}
	for _, line := range s.fields {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return h
}

// escaped returns a text with all bytes but slashes escaped.
func escaped(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if b == '/' {
			out.WriteByte(b)
			continue
		}
		out.WriteString("%" + strings.ToUpper(strconv.FormatUint(uint64(b)|0x100, 16)[1:]))
	}
	return out.String()
}
