package rls_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/server/envoy/rls"
)

// A rawCodec sends and receives messages as bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// send sends bytes as a request, and returns the bytes of the response.
func send(t *testing.T, conn *grpc.ClientConn, data []byte) ([]byte, error) {
	var response []byte
	err := conn.Invoke(t.Context(), method, data, &response, grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallSendMsgSize(64<<20))
	return response, err
}

// wantServed fails the test unless a new client is served.
func wantServed(t *testing.T, l net.Listener) {
	t.Helper()
	if _, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), takeRequest("bob")); err != nil {
		t.Errorf("a new client is not served: %v", err)
	}
}

// userRequest returns the encoded request for a user of any bytes.
func userRequest(user string) []byte {
	entry := protowire.AppendString([]byte("\x0a\x04user\x12"), user)
	descriptor := protowire.AppendBytes([]byte("\x0a"), entry)
	return protowire.AppendBytes([]byte("\x0a\x03api\x12"), descriptor)
}

func TestMalformedRequestFailsOneCall(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	conn := dial(t, l)
	whole := userRequest("ada")
	for _, c := range []struct {
		name string
		data []byte
		code codes.Code
	}{
		{"truncated", whole[:len(whole)-1], codes.InvalidArgument},
		{"length beyond the end", []byte("\x0a\xff\xff\xff\xff\x7f"), codes.InvalidArgument},
		{"nested groups", bytes.Repeat([]byte("\x0b"), 20_000), codes.InvalidArgument},
		{"many descriptors", bytes.Repeat([]byte("\x12\x00"), 100_000), codes.ResourceExhausted},
		{"empty", nil, codes.Unknown},
		{"unknown fields", append([]byte("\xf8\x07\x01"), whole...), codes.OK},
		{"300 KiB", userRequest(strings.Repeat("a", 300<<10)), codes.ResourceExhausted},
		{"10 MB", userRequest(strings.Repeat("a", 10<<20)), codes.ResourceExhausted},
	} {
		_, err := send(t, conn, c.data)
		if err == nil && c.code != codes.OK {
			t.Errorf("%s: no error", c.name)
		}
		wantCode(t, err, c.code)
	}
	wantServed(t, l)
}

// Envoy lets a request pass whose call fails, and can take the hits from a header of the client.
func TestHugeHitsAreDenied(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	for _, hits := range []uint64{1 << 50, math.MaxInt64, math.MaxUint64} {
		r := takeRequest("ada")
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(hits)
		r.Descriptors = append(r.Descriptors, r.Descriptors[0])
		got, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), r)
		if err != nil || got.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
			t.Errorf("twice %d hits: got %v, %v, want OVER_LIMIT", hits, got, err)
		}
	}
}

func TestKeysMayHoldAnyBytes(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	conn := dial(t, l)
	users := []string{
		"", "\x00", "\n", "\xff", "\xfe\xff", "{}", "{a}b", "a|b", `a\|b`, "a=b", `a\=b`, "a", "a\r\nX: y", "<script>",
		strings.Repeat("a", 100_000), strings.Repeat("a", 100_001),
	}
	ok := []byte("\x08\x01")
	for range 2 { // the limit of each user
		for _, user := range users {
			response, err := send(t, conn, userRequest(user))
			if err != nil || !bytes.HasPrefix(response, ok) {
				t.Errorf("%.20q: got %x, %v, want OK", user, response, err)
			}
		}
	}
	for _, user := range users {
		response, err := send(t, conn, userRequest(user))
		if err != nil || bytes.HasPrefix(response, ok) {
			t.Errorf("%.20q: got %x, %v, want OVER_LIMIT", user, response, err)
		}
	}
}

func TestServerRejectsHugeHeaders(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	c := pb.NewRateLimitServiceClient(dial(t, l))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-huge", strings.Repeat("a", 1<<20))
	if _, err := c.ShouldRateLimit(ctx, takeRequest("ada")); err == nil {
		t.Error("a header of 1 MB was accepted")
	}
	wantServed(t, l)
}

func TestServerClosesNonHTTP2Connection(t *testing.T) {
	t.Parallel()
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n", "\x16\x03\x01\x02\x00\x01\x00" + strings.Repeat("\x01", 30), strings.Repeat("\x00", 100),
		http2.ClientPreface + strings.Repeat("\xff", 100),
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, conn)
	}
	wantServed(t, l)
}

// wantClosed waits until the server closes the connection.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection was not closed")
	}
}

func TestServerClosesSilentConnection(t *testing.T) {
	t.Parallel()
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	for _, text := range []string{"", http2.ClientPreface[:10]} {
		t.Run(fmt.Sprintf("after %q", text), func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, conn)
		})
	}
	wantServed(t, l)
}

// An h2Client sends and receives single HTTP/2 frames, and ignores the protocol's limits.
type h2Client struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	headers bytes.Buffer
}

func newH2Client(t *testing.T, l net.Listener) *h2Client {
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &h2Client{t: t, conn: conn, Framer: http2.NewFramer(conn, conn)}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// startCall sends the headers of a call, and reports whether the connection is open.
func (c *h2Client) startCall(stream uint32) bool {
	c.headers.Reset()
	e := hpack.NewEncoder(&c.headers)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.headers.Bytes(), EndHeaders: true}) == nil
}

// readUntil reads frames until one matches, and reports false if the connection is closed
// first.
func (c *h2Client) readUntil(match func(http2.Frame) bool) bool {
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return false
		}
		if match(f) {
			return true
		}
	}
}

func TestServerMaxStreamsRefusesFurtherCalls(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), &rls.Options{MaxStreams: 10})
	before := runtime.NumGoroutine()
	c := newH2Client(t, l)
	for i := range uint32(10_000) {
		if !c.startCall(2*i + 1) {
			break
		}
	}
	refused := c.readUntil(func(f http2.Frame) bool {
		reset, ok := f.(*http2.RSTStreamFrame)
		return ok && reset.ErrCode == http2.ErrCodeRefusedStream
	})
	if !refused {
		t.Error("no call was refused")
	}
	if n := runtime.NumGoroutine(); n > before+100 {
		t.Errorf("%d goroutines, %d before the calls", n, before)
	}
	wantServed(t, l)
}

func TestCanceledCallsLeakNoGoroutines(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	wantServed(t, l)
	before := runtime.NumGoroutine()
	c := newH2Client(t, l)
	go c.readUntil(func(http2.Frame) bool { return false }) // reads the responses
	for i := range uint32(20_000) {
		if !c.startCall(2*i+1) || c.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
			break
		}
	}
	wantServed(t, l)
	_ = c.conn.Close()
	waitForGoroutines(t, before+20)
}

// waitForGoroutines waits until there are at most limit goroutines.
func waitForGoroutines(t *testing.T, limit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > limit {
		select {
		case <-ctx.Done():
			t.Fatalf("%d goroutines, want at most %d", runtime.NumGoroutine(), limit)
		case <-tick.C:
		}
	}
}

func TestServerClosesPingFlood(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	c := newH2Client(t, l)
	for i := range byte(50) {
		if c.WritePing(false, [8]byte{i}) != nil {
			break
		}
	}
	calm := c.readUntil(func(f http2.Frame) bool {
		goAway, ok := f.(*http2.GoAwayFrame)
		return ok && goAway.ErrCode == http2.ErrCodeEnhanceYourCalm
	})
	if !calm {
		t.Error("no GOAWAY with ENHANCE_YOUR_CALM")
	}
	wantServed(t, l)
}

func TestServerMaxConnectionIdleSendsGoAway(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), &rls.Options{MaxConnectionIdle: 20 * time.Millisecond})
	ended := newH2Client(t, l).readUntil(func(f http2.Frame) bool {
		_, ok := f.(*http2.GoAwayFrame)
		return ok
	})
	if !ended {
		t.Error("no GOAWAY")
	}
	wantServed(t, l)
}

func TestHostileCallsLeaveHeapFlat(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	conn := dial(t, l)
	long := userRequest(strings.Repeat("a", 200<<10))
	many := bytes.Repeat([]byte("\x12\x00"), 100_000)
	round := func() {
		for range 20 {
			_, _ = send(t, conn, long)
			_, _ = send(t, conn, many)
		}
	}
	round()
	before := heapBytes()
	for range 5 {
		round()
	}
	if after := heapBytes(); after > before+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC() // empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A call whose request never arrives times out, of any method: the server keeps the received
// part in memory until then.
func TestUnsentCallTimesOut(t *testing.T) {
	t.Parallel()
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), &rls.Options{Services: []rls.OtherService{endlessService{}}})
	conn := dial(t, l)
	for _, name := range []string{
		method, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
		"/endless/Stream",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name, grpc.ForceCodecV2(rawCodec{}))
			if err != nil {
				t.Fatal(err)
			}
			var response []byte
			if err := stream.RecvMsg(&response); err == nil || ctx.Err() != nil {
				t.Errorf("got %v after %v, want an error before the client's deadline", err, ctx.Err())
			}
			wantServed(t, l)
		})
	}
}

// An endlessService has a method that receives messages until the client ends it.
type endlessService struct{}

func (endlessService) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: "endless", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				if err := stream.RecvMsg(&wrapperspb.StringValue{}); err != nil {
					return err
				}
			}
		},
	}}}, endlessService{})
}

func (endlessService) Stop() {}

// Watch calls last, so a client could otherwise occupy memory with as many as its connections
// have streams.
func TestServerBoundsWatchCallsOfAConnection(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	health := healthpb.NewHealthClient(dial(t, l))
	watch := func(c healthpb.HealthClient) (cancel context.CancelFunc, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return cancel, err
	}
	const most = 8
	var cancels []context.CancelFunc
	for i := range most {
		cancel, err := watch(health)
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		defer cancel()
		cancels = append(cancels, cancel)
	}
	_, err := watch(health)
	wantCode(t, err, codes.ResourceExhausted)
	if _, err := watch(healthpb.NewHealthClient(dial(t, l))); err != nil {
		t.Errorf("another connection: %v", err)
	}
	cancels[0]()
	for _, err = watch(health); err != nil && t.Context().Err() == nil; _, err = watch(health) { // until the server has noticed
		wantCode(t, err, codes.ResourceExhausted)
	}
}
