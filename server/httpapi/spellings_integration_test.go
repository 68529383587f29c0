//go:build integration

package httpapi_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Whatever a client sends, what the application behind a proxy reads as one value has one counter, or is denied.
func TestIntegrationProxiesCountSpellingsOfOneValueAsOne(t *testing.T) {
	for name, start := range map[string]func(t *testing.T, o proxyOptions) string{
		"nginx": startNginxWith,
		"caddy": startCaddyWith,
		"haproxy": func(t *testing.T, o proxyOptions) string {
			return startHAProxy(t, o.daemons[0], o.site, "limit=3/1m&key=address:X-Forwarded-For", o.query)
		},
	} {
		for _, source := range append(sources, addressSource) {
			t.Run(name+" "+source.parameter, func(t *testing.T) {
				checkSpellings(t, &source, start)
			})
		}
	}
}

// The client is the one that connects to the proxy, whatever it says.
var addressSource = source{
	parameter: "address:X-Forwarded-For", spellings: addressSpellings(),
	readers: []reader{{name: "an application", read: func(string, http.Header) string { return "the connection's" }}},
}

func addressSpellings() (all []spelling) {
	for _, value := range []string{
		"", " ", ",", "203.0.113.9", " 203.0.113.9 ", "\t203.0.113.9", "203.0.113.9,203.0.113.8", "203.0.113.9, ", ",203.0.113.9", "203.0.113.9:80", "203.0.113.09", "0xcb.0.113.9", "3405803785",
		"::ffff:203.0.113.9", "[::ffff:203.0.113.9]:80", "::FFFF:cb00:7109", "2001:db8::1", "2001:DB8:0:0:0:0:0:1", "[2001:db8::1]", "[2001:db8::1]:80", "2001:db8::1%eth0",
		"unknown", `"203.0.113.9"`, "for=203.0.113.9", "127.0.0.1", "127.0.0.1, 203.0.113.9", "::1", "::ffff:127.0.0.1", "\xff",
	} {
		all = append(all, spelling{"/", []string{"X-Forwarded-For: " + value}}, spelling{"/", []string{"x_forwarded_for: " + value}},
			spelling{"/", []string{"X-Forwarded-For: 203.0.113.7", "x-forwarded-for:" + value}}, spelling{"/", []string{"X-Real-IP: " + value, "Forwarded: for=" + value}})
	}
	return all
}

// checkSpellings sends every spelling through a proxy. What the site reads is told by what it has received.
func checkSpellings(t *testing.T, source *source, start func(t *testing.T, o proxyOptions) string) {
	keys, received := &countedKeys{}, make(chan *http.Request, 1)
	base := serve(t, newServer(t, newEngine(t, keys.store(), nil), nil))
	s := &site{Server: httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r }))}
	t.Cleanup(s.Close)
	proxy := start(t, proxyOptions{site: s, daemons: [2]string{base, base}, query: "limit=1000000/1d&key=" + source.parameter})
	counting, passed := counting{}, 0
	for _, s := range source.spellings {
		status := sendRaw(t, strings.TrimPrefix(proxy, "http://"), s)
		select {
		case r := <-received:
			passed++
			counted := keys.take()
			if status != 200 || len(counted) != 1 {
				t.Errorf("%q: got %d, counted as %q, want 200 and one key", s, status, counted)
				continue
			}
			counting.add(t, source.readers, s, r.RequestURI, r.Header, counted[0])
		default:
			keys.take()
			if status < 300 {
				t.Errorf("%q: the site has not got it, and the client got %d", s, status)
			}
		}
	}
	if passed < len(source.spellings)/4 {
		t.Errorf("%d of %d spellings reach the site, want more", passed, len(source.spellings))
	}
}

// sendRaw sends a request as it is spelled, and returns the status of the answer.
func sendRaw(t *testing.T, address string, s spelling) int {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	lines := append([]string{"GET " + s.target + " HTTP/1.1", "Host: " + address, "Connection: close"}, s.fields...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil && len(text) == 0 {
		t.Fatalf("%q: %v", s, err)
	}
	if !bytes.HasPrefix(text, []byte("HTTP/")) { // nginx takes what it cannot parse for HTTP/0.9
		return http.StatusBadRequest
	}
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
