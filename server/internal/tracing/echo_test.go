package tracing

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// exportTo sends a span to a collector that refuses it, and returns the log.
func exportTo(t *testing.T, environ ...string) string {
	t.Helper()
	c, err := ReadEnvironment(append(environ, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer header-secret"))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	tracer, err := New(*c, "a", "b", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.close()
	_, span := tracer.Start(t.Context(), "grpc", []string{sampled})
	span.End()
	tracer.tell(1, tracer.try(t.Context(), encode(tracer.resource, []*record{<-tracer.queue})))
	if tracer.Dropped.Load() != 1 || log.Len() == 0 {
		t.Errorf("%d dropped, and the log is %q", tracer.Dropped.Load(), log.String())
	}
	return log.String()
}

func checkLog(t *testing.T, log string) {
	t.Helper()
	for _, secret := range []string{"header-s", "user-secret", "query-s", base64.RawStdEncoding.EncodeToString([]byte("ada:user-s"))} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %q: %s", secret, log)
		}
	}
}

// A collector that repeats the request gets no header and no part of the URL into the log.
func TestRepeatedHeadersAreHidden(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"HTTP/1.1 400 %s\r\n\r\n", "HTTP/1.1 503 %s\r\n\r\n", "HTTP/1.1 %s OK\r\n\r\n", "%s\r\n\r\n", "%s 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n", "HTTP/1.1 200 OK\r\n%s\r\n\r\n",
		"HTTP/1.1 302 OK\r\nLocation: http://%%zz/%s\r\n\r\n",
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go repeatRequests(l, answer)
			checkLog(t, exportTo(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://ada:user-secret@"+l.Addr().String()+"/v1?token=query-secret"))
		})
	}
}

func repeatRequests(l net.Listener, answer string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			head, _ := httputil.DumpRequest(r, false)
			_, _ = io.WriteString(conn, fmt.Sprintf(answer, strings.NewReplacer("\r", "", "\n", " ").Replace(string(head))))
		}
		_ = conn.Close()
	}
}

func TestRepeatedMetadataIsHidden(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		fields, _ := metadata.FromIncomingContext(stream.Context())
		return status.Error(codes.PermissionDenied, fmt.Sprint("denied: ", fields))
	}))
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	log := exportTo(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+l.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	checkLog(t, log)
	if !strings.Contains(log, "denied: ") {
		t.Errorf("the log is %s", log)
	}
}
