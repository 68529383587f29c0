package demo

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// The address in the printed command works as soon as it is printed, also if another
// program has the preferred one.
func TestServePrintsCommandsWhenItListens(t *testing.T) {
	taken, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	for _, address := range []string{"localhost:0", taken.Addr().String()} {
		r, w := io.Pipe()
		go func() { _ = serve(w, address, hello, []string{"curl http://localhost:8080/x"}) }()
		line, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		url := strings.TrimPrefix(strings.TrimSpace(line), "curl ")
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if closed := resp.Body.Close(); err != nil || closed != nil || string(body) != "hello" {
			t.Errorf("%s: got %q, %v, %v", url, body, err, closed)
		}
		if strings.Contains(url, taken.Addr().String()) {
			t.Errorf("printed %s, which another program has", url)
		}
	}
}

func TestServeReportsBadAddress(t *testing.T) {
	if err := serve(io.Discard, "localhost:http-no-such-port", nil, nil); err == nil {
		t.Error("want an error")
	}
}
