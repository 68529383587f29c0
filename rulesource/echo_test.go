package rulesource_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
)

const (
	echoUser     = "ada.lovelace"
	echoPassword = "pass+word/of?ada"
	echoQuery    = "query-secret"
)

// An echo is a place of an answer where a server repeats a part of the request.
type echo struct {
	name   string
	answer func(part string) string // the whole answer; or
	rules  func(part string) string // rules, in the form of the source
}

func header(status, fields, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s", status, len(body), fields, body)
}

func echoes() []echo {
	all := []echo{
		{name: "protocol", answer: func(part string) string { return part + " 200 OK\r\n\r\n" }},
		{name: "line", answer: func(part string) string { return part + "\r\n\r\n" }},
		{name: "code", answer: func(part string) string { return "HTTP/1.1 " + part + " OK\r\n\r\n" }},
		{name: "reason", answer: func(part string) string { return header("503 "+part, "", part) }},
		{name: "no field", answer: func(part string) string { return header("200 OK", part+"\r\n", "") }},
		{name: "name of a field", answer: func(part string) string { return header("200 OK", part+": x\r\n", part) }},
		{name: "length", answer: func(part string) string { return "HTTP/1.1 200 OK\r\nContent-Length: " + part + "\r\n\r\n" }},
		{name: "coding", answer: func(part string) string { return "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + part + "\r\n\r\n" }},
		{name: "chunk", answer: func(part string) string {
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + part + "\r\n"
		}},
		{name: "after the answer", answer: func(part string) string { return header("304 Not Modified", "", "") + part }},
		{name: "body", answer: func(part string) string { return header("200 OK", "", part) }},
		{name: "JSON", answer: func(part string) string { return header("200 OK", "", fmt.Sprintf("{%q:%q}", part, part)) }},
		{name: "unknown key", rules: func(part string) string { return fmt.Sprintf("domain: shop\n%q: 1\n", part) }},
		{name: "escaped", rules: func(part string) string {
			return "domain: shop\n\"\\x" + fmt.Sprintf("%x", part[0]) + strings.ReplaceAll(part[1:], `"`, `\"`) + "\": 1\n"
		}},
		{name: "limit", rules: func(part string) string {
			return fmt.Sprintf("domain: shop\ndescriptors: [{key: user, limit: %q}]\n", part)
		}},
		{name: "raw", rules: func(part string) string { return part }},
		{name: "domain", rules: func(part string) string {
			return fmt.Sprintf("domain: %q\ndescriptors: [{key: user, limit: 1/1s}]\n", part)
		}},
	}
	fields := []string{"Content-Encoding", "Content-Type", "Etag", "X-Consul-Index", "Connection", "Trailer", "Set-Cookie", "Www-Authenticate", "Location"}
	for _, field := range fields {
		status := "200 OK"
		if field == "Location" {
			status = "302 Found"
		}
		all = append(all,
			echo{name: field, answer: func(part string) string { return header(status, field+": "+part+"\r\n", "x") }},
			echo{name: field + " as a URL", answer: func(part string) string { return header(status, field+": http://%zz/"+part+"\r\n", "x") }})
	}
	return all
}

// An echoServer repeats a part of each request, in answers to logins, or in those that have the rules.
type echoServer struct {
	mu     sync.Mutex
	echo   echo
	logins bool
	part   int // which of those that [echoServer.repeat] returns
	parts  int // how many a request had
	proofs map[string]bool
}

func startEcho(t *testing.T) (s *echoServer, host string) {
	t.Helper()
	s = &echoServer{proofs: map[string]bool{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, s.answer(r))
				}
			}()
		}
	}()
	return s, l.Addr().String()
}

func (s *echoServer) answer(r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := s.repeat(r)
	good, _, hasRules := answerRules(r, "domain: shop\n", "1")
	switch isLogin := strings.Contains(r.URL.Path, "/auth/"); {
	case !hasRules && !(isLogin && s.logins):
		return header("200 OK", "", good)
	case s.echo.answer != nil:
		return s.echo.answer(part)
	}
	good, _, _ = answerRules(r, s.echo.rules(part), "1")
	return header("200 OK", "", good)
}

// repeat returns a part of a request in one line.
func (s *echoServer) repeat(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	parts := []string{r.RequestURI, r.URL.RawQuery, string(body)}
	for _, name := range []string{"Authorization", "X-Consul-Token"} {
		proof := r.Header.Get(name)
		last := proof[strings.LastIndexAny(proof, " :")+1:]
		if parts = append(parts, proof, last, name+": "+proof); last != "" {
			s.proofs[last] = true
		}
	}
	parts = append(parts, strings.Join(parts, " "))
	s.parts = len(parts)
	return cmp.Or(strings.NewReplacer("\r", "", "\n", "").Replace(parts[s.part]), "none")
}

// leak returns what a text has of what was sent.
func (s *echoServer) leak(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	secret := []string{echoPassword, echoUser + ":" + echoPassword, "token-of-the-login"}
	for proof := range s.proofs {
		secret = append(secret, proof)
	}
	for _, form := range secret {
		base64 := base64.StdEncoding.EncodeToString([]byte(form))
		for _, form := range []string{form, url.QueryEscape(form), url.PathEscape(form), base64, url.QueryEscape(base64)} {
			if strings.Contains(text, form[:min(len(form), 10)]) {
				return form
			}
		}
	}
	return ""
}

// A server that repeats the request, as a page for debugging does, gets no credentials into errors, which are in
// logs and pages, or into names of rules, which are in metrics, too.
func TestRepeatedCredentialsAreHidden(t *testing.T) {
	t.Parallel()
	var printed lockedBuffer // by net/http
	log.SetOutput(&printed)
	t.Cleanup(func() {
		log.SetOutput(os.Stderr)
		if printed.text.Len() > 0 {
			t.Errorf("printed %.300s", printed.text.String())
		}
	})
	for i := range sources("") {
		for _, credentials := range []string{echoUser + ":" + echoPassword, echoPassword} {
			t.Run(fmt.Sprint(i, len(credentials)), func(t *testing.T) {
				t.Parallel()
				s, host := startEcho(t)
				testEchoes(t, s, sources(host)[i], credentials)
			})
		}
	}
}

func testEchoes(t *testing.T, s *echoServer, url, credentials string) {
	if strings.HasPrefix(url, "http:") {
		url += "?token=" + echoQuery
	}
	hasLogin, refused := strings.Contains(url, "etcd:") || strings.Contains(url, "nacos:"), 0
	for _, e := range echoes() {
		for part, logins := 0, false; part < max(s.parts, 1); logins = !logins && hasLogin {
			s.mu.Lock()
			s.echo, s.part, s.logins = e, part, logins
			s.mu.Unlock()
			set, err := openSource(t, url, credentials, "").Load(t.Context())
			text := ""
			if err != nil {
				refused++
				text = err.Error()
			} else {
				text = fmt.Sprint(set.DomainNames(), set.Warnings())
			}
			if form := s.leak(text); form != "" || err != nil && strings.Contains(text, echoQuery) {
				t.Errorf("%s: %s of part %d: %q contains %q", url, e.name, part, text, form)
			}
			if logins || !hasLogin {
				part++
			}
		}
	}
	if refused < 70 {
		t.Errorf("%s: %d answers were refused", url, refused)
	}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}
