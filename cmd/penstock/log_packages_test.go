package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	standard "log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

// A collector that sends back each request after its answer gets no header into the log: net/http would print all of it.
func TestServeLogsNoAnswerThatNobodyAskedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go repeatAfterAnswer(l)
	defer standard.SetFlags(standard.Flags())
	defer standard.SetOutput(os.Stderr)
	for _, format := range []string{"text", "json"} {
		config, err := server.LoadConfig(map[string]string{"grpc": "", "http": "127.0.0.1:0", "resp": "", "admin": "", "log-format": format},
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + l.Addr().String(), "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer header-secret", "OTEL_BSP_SCHEDULE_DELAY=1"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		reader, writer := io.Pipe()
		standard.SetOutput(writer) // unless serve replaces it
		go func() { _ = writer.CloseWithError(serve(ctx, config, io.Discard, writer, false)) }()
		told := false
		for lines, listening := bufio.NewScanner(reader), regexp.MustCompile(`listener"?[=:]"?http"?[ ,]"?addr"?[=:]"?([\d.:]+)`); lines.Scan(); {
			if strings.Contains(lines.Text(), "header-secret") {
				t.Errorf("the log has %s", lines.Text())
			}
			if addr := listening.FindStringSubmatch(lines.Text()); addr != nil {
				askTraced(t, addr[1])
			}
			if strings.Contains(lines.Text(), "Unsolicited response") {
				told = true
				stop() // after which the log ends
			}
		}
		if stop(); !told {
			t.Error("the log ended without a line about the second answer")
		}
	}
}

func askTraced(t *testing.T, addr string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/take", strings.NewReader(`{"key":"k","limit":"5/1m"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}

func repeatAfterAnswer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			head, _ := httputil.DumpRequest(r, true)
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			_, _ = conn.Write(head)
		}
	}
}
