package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/secrets"
)

// A Tracer traces requests. Decisions never wait for it: spans are queued, and dropped while the queue is full. A nil Tracer
// traces nothing.
type Tracer struct {
	Exported, Dropped atomic.Uint64 // spans

	config   Config
	resource []attribute
	active   atomic.Int64 // requests that are traced
	queue    chan *record
	send     func(ctx context.Context, body []byte) error
	close    func()
	log      *slog.Logger
	down     bool // the last spans could not be sent
}

// New returns a tracer of the daemon with a name and a version. It opens no connection.
func New(c Config, name, version string, log *slog.Logger) (*Tracer, error) {
	t := &Tracer{config: c, queue: make(chan *record, c.maxQueue), log: log}
	resource := map[string]string{"service.name": "penstock", "service.instance.id": name, "service.version": version}
	maps.Copy(resource, c.resource)
	for key, text := range resource {
		t.resource = append(t.resource, attribute{key: key, text: text})
	}
	if c.grpc {
		return t, t.openGRPC()
	}
	t.openHTTP()
	return t, nil
}

// enqueue queues a span, or drops it.
func (t *Tracer) enqueue(r *record) {
	select {
	case t.queue <- r:
	default:
		t.Dropped.Add(1)
	}
}

// lastFlush is how long spans of a daemon that ends are sent for.
const lastFlush = 2 * time.Second

// Run sends spans until ctx ends, and then those that are queued.
func (t *Tracer) Run(ctx context.Context) {
	defer t.close()
	tick := time.NewTicker(t.config.delay)
	defer tick.Stop()
	var spans []*record
	for ctx.Err() == nil {
		select {
		case r := <-t.queue:
			if spans = append(spans, r); len(spans) < t.config.maxBatch {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			continue
		}
		t.export(ctx, spans)
		spans = nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(lastFlush, t.config.timeout))
	defer cancel()
	for len(t.queue) > 0 {
		spans = append(spans, <-t.queue)
	}
	for part := range slices.Chunk(spans, t.config.maxBatch) {
		t.export(last, part)
	}
}

// maxPause ends the repetitions of spans that could not be sent: after pauses of 1, 2 and 4 seconds.
const maxPause = 4 * time.Second

// export sends spans, again after an error that may pass.
func (t *Tracer) export(ctx context.Context, spans []*record) {
	if len(spans) == 0 {
		return
	}
	body := encode(t.resource, spans)
	err := t.try(ctx, body)
	for pause := time.Second; err != nil && isTemporary(err) && pause <= maxPause && monotime.Sleep(ctx, pause) == nil; pause *= 2 {
		err = t.try(ctx, body)
	}
	t.tell(len(spans), err)
}

// tell counts spans, and logs when the collector stops or begins to take them.
func (t *Tracer) tell(spans int, err error) {
	if err == nil {
		t.Exported.Add(uint64(spans))
	} else {
		t.Dropped.Add(uint64(spans))
	}
	if down := err != nil; down != t.down {
		t.down = down
		if down {
			t.log.Warn("traces cannot be sent, and are dropped", "err", t.config.secrets().Error(err))
		} else {
			t.log.Info("traces are sent again")
		}
	}
}

// secrets returns what a collector is sent and may repeat in its answer: headers, and all of the URL but the host.
func (c *Config) secrets() secrets.Forms {
	found := []string{c.endpoint.RequestURI(), c.endpoint.RawQuery, c.endpoint.User.String()}
	if c.endpoint.User != nil {
		password, _ := c.endpoint.User.Password()
		found = append(found, c.endpoint.User.Username()+":"+password, password)
	}
	for _, value := range c.headers {
		found = append(found, value, value[strings.LastIndex(value, " ")+1:])
	}
	return secrets.Of(found...)
}

func (t *Tracer) try(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, t.config.timeout)
	defer cancel()
	return t.send(ctx, body)
}

// errTemporary marks an answer after which the same spans may be sent again.
var errTemporary = errors.New("temporary")

// isTemporary reports whether spans may be sent again after an error, as OTLP says.
func isTemporary(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.OutOfRange, codes.DataLoss:
		return true
	}
	return errors.Is(err, errTemporary)
}

// openHTTP prepares to send spans over HTTP.
func (t *Tracer) openHTTP() {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = t.config.tls
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.close = transport.CloseIdleConnections
	t.send = func(ctx context.Context, body []byte) error {
		r, err := t.newRequest(ctx, body)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return fmt.Errorf("%w: %w", errTemporary, errors.Unwrap(err)) // without the URL
		}
		defer func() { _ = response.Body.Close() }()
		_, _ = io.CopyN(io.Discard, response.Body, 1<<16) // so that the connection can be reused
		switch response.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return fmt.Errorf("%w: answer %s", errTemporary, response.Status)
		case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
			return nil
		}
		return errors.New("answer " + response.Status)
	}
}

func (t *Tracer) newRequest(ctx context.Context, body []byte) (*http.Request, error) {
	encoding := ""
	if t.config.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(body) // into memory
		_ = w.Close()
		body, encoding = packed.Bytes(), "gzip"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.config.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("bad endpoint") // the URL may be secret
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	for name, value := range t.config.headers {
		r.Header.Set(name, value)
	}
	return r, nil
}

const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// openGRPC prepares to send spans over gRPC.
func (t *Tracer) openGRPC() error {
	secure := insecure.NewCredentials()
	if t.config.endpoint.Scheme == "https" {
		secure = credentials.NewTLS(t.config.tls)
	}
	conn, err := grpc.NewClient("dns:///"+t.config.endpoint.Host, grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return fmt.Errorf("the endpoint of traces: %w", err)
	}
	fields := metadata.New(t.config.headers)
	t.close = func() { _ = conn.Close() }
	t.send = func(ctx context.Context, body []byte) error {
		var answer []byte
		return conn.Invoke(metadata.NewOutgoingContext(ctx, fields), exportMethod, body, &answer)
	}
	return nil
}

// A rawCodec passes messages that are encoded already.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}
