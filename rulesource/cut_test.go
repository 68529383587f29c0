package rulesource_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// A framing is how a server says where the body of an answer ends.
type framing struct {
	name, status    string
	chunked, length bool
	members         int  // of gzip; 0 is none
	unmarked        bool // only the end of the connection ends the body
}

var framings = []framing{
	{name: "length", status: "HTTP/1.1 200 OK", length: true},
	{name: "chunks", status: "HTTP/1.1 200 OK", chunked: true},
	{name: "close", status: "HTTP/1.1 200 OK", unmarked: true},
	{name: "close of 1.0", status: "HTTP/1.0 200 OK", unmarked: true},
	{name: "length of 1.0", status: "HTTP/1.0 200 OK", length: true},
	{name: "gzip with length", status: "HTTP/1.1 200 OK", length: true, members: 1},
	{name: "gzip in chunks", status: "HTTP/1.1 200 OK", chunked: true, members: 2},
	{name: "gzip until close", status: "HTTP/1.1 200 OK", members: 2, unmarked: true},
}

// write returns an answer as bytes, with the place where its body begins.
func (f framing) write(body string, header http.Header) (answer []byte, head int) {
	var packed bytes.Buffer
	packed.WriteString(body)
	if f.members > 0 {
		packed.Reset()
		header.Set("Content-Encoding", "gzip")
		for i := range f.members {
			w := gzip.NewWriter(&packed)
			_, _ = w.Write([]byte(body[i*len(body)/f.members : (i+1)*len(body)/f.members])) // into memory
			_ = w.Close()
		}
	}
	header.Set("Connection", "close")
	var all bytes.Buffer
	if f.length {
		header.Set("Content-Length", strconv.Itoa(packed.Len()))
	}
	if f.chunked {
		header.Set("Transfer-Encoding", "chunked")
	}
	all.WriteString(f.status + "\r\n")
	_ = header.Write(&all)
	all.WriteString("\r\n")
	head = all.Len()
	if !f.chunked {
		return append(all.Bytes(), packed.Bytes()...), head
	}
	chunks := httputil.NewChunkedWriter(&all)
	for packed.Len() > 0 {
		_, _ = chunks.Write(packed.Next(31))
	}
	_ = chunks.Close()
	return append(all.Bytes(), "\r\n"...), head
}

// A cutServer answers with rules, and ends the connection within the answer.
type cutServer struct {
	framing atomic.Pointer[framing]
	text    atomic.Pointer[string]
	version atomic.Int64
	cut     atomic.Int64 // where an answer with rules ends; below 0 it counts from its end, and 0 is its end
	whole   atomic.Int64 // length of the last answer with rules
	head    atomic.Int64 // of these, the header
}

func (s *cutServer) serve(l net.Listener, config *tls.Config) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }() // without close_notify of TLS
			if config != nil {
				s.answer(tls.Server(conn, config))
			} else {
				s.answer(conn)
			}
		}()
	}
}

func (s *cutServer) answer(conn net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	body, header, hasRules := answerRules(r, *s.text.Load(), fmt.Sprint(s.version.Add(1)))
	if !hasRules {
		answer, _ := framings[0].write(body, header)
		_, _ = conn.Write(answer)
		return
	}
	answer, head := s.framing.Load().write(body, header)
	s.whole.Store(int64(len(answer)))
	s.head.Store(int64(head))
	switch cut := s.cut.Load(); {
	case cut > 0:
		answer = answer[:min(cut, int64(len(answer)))]
	case cut < 0:
		answer = answer[:int64(len(answer))+cut]
	}
	_, _ = conn.Write(answer)
}

// twoRules is a file whose beginning is a file, too.
func twoRules(count int) string {
	return fmt.Sprintf("domain: shop\ndescriptors:\n- {key: user, limit: %d/1h}\n- {key: other, limit: 7/1h}\n", count)
}

func startCut(t *testing.T, f framing, config *tls.Config) (s *cutServer, host string) {
	t.Helper()
	s = &cutServer{}
	s.framing.Store(&f)
	text := twoRules(5)
	s.text.Store(&text)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go s.serve(l, config)
	return s, l.Addr().String()
}

// An answer that ends early, at any byte, is no answer: the beginning of a rule file is often a file that limits less.
func TestAnswersThatEndEarlyAreRefused(t *testing.T) {
	t.Parallel()
	for _, f := range framings {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s, host := startCut(t, f, nil)
			for _, url := range sources(host) {
				testCuts(t, s, url, f.unmarked)
			}
		})
	}
}

func testCuts(t *testing.T, s *cutServer, url string, unmarked bool) {
	t.Helper()
	source := openSource(t, url, "", "")
	s.cut.Store(0)
	if _, err := source.Load(t.Context()); isUnmarked(err) != unmarked || !unmarked && err != nil {
		t.Fatalf("%s: a whole answer: got %v", url, err)
	}
	refused := int64(0)
	for cut := int64(1); cut < s.whole.Load(); cut++ {
		s.cut.Store(cut)
		set, err := source.Load(t.Context())
		switch {
		case err != nil:
			refused++
		case len(set.Rules()) != 2 || countOf(set) != 5:
			t.Fatalf("%s: %d of %d bytes are %d rules", url, cut, s.whole.Load(), len(set.Rules()))
		}
	}
	if refused < s.head.Load() {
		t.Errorf("%s: %d answers refused, want more than the %d bytes of the header", url, refused, s.head.Load())
	}
}

func isUnmarked(err error) bool {
	return err != nil && strings.Contains(err.Error(), "neither a length nor chunks")
}

// While a program runs, the rules that it has stay in force, and it is told why.
func TestAnswersThatEndEarlyAreToldToWatch(t *testing.T) {
	t.Parallel()
	for _, f := range framings {
		for _, kind := range sources("HOST") {
			t.Run(f.name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s, host := startCut(t, framings[0], nil)
				source := openSource(t, strings.Replace(kind, "HOST", host, 1), "", "")
				load(t, source)
				second := twoRules(6)
				s.cut.Store(-int64(len(second) - strings.LastIndex(second, "-")))
				s.framing.Store(&f)
				s.text.Store(&second)
				w := watch(t, source)
				w.wantFailure()
				s.framing.Store(&framings[0])
				s.cut.Store(0)
				w.wantCount(6)
			})
		}
	}
}

// Go takes the end of a TLS connection between two records for the end of the answer.
func TestAnswersThatEndEarlyAreRefusedOverTLS(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range framings {
		_, host := startCut(t, f, &tls.Config{Certificates: secure.TLS.Certificates})
		_, err := openSource(t, "nacos+https://"+host+"/G/rules.yaml?ca="+ca, "", "").Load(t.Context())
		if isUnmarked(err) != f.unmarked || !f.unmarked && err != nil {
			t.Errorf("%s: got %v", f.name, err)
		}
	}
}
