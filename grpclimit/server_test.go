package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/httplimit"
)

// echo answers each call and counts the messages of each stream.
type echo struct {
	pb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Username: "hello"}, nil
}

func (echo) StreamingInputCall(s pb.TestService_StreamingInputCallServer) error {
	var n int32
	for {
		_, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		}
		if err != nil {
			return status.Error(codes.Internal, "could not receive") // a handler with its own idea of an error
		}
		n++
	}
}

func limiter(t *testing.T, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	name, limit, named := strings.Cut(text, ": ")
	if !named {
		name, limit = "", text
	}
	l, err := penstock.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(s, l.WithName(name))
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

func inMemory(t *testing.T, text string) *penstock.Limiter {
	t.Helper()
	return limiter(t, penstock.NewMemory(nil), text)
}

// serve starts a server on this machine and returns its address.
func serve(t *testing.T, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, options...)
	return listener.Addr().String()
}

func serveOn(t *testing.T, listener net.Listener, options ...grpc.ServerOption) {
	t.Helper()
	server := grpc.NewServer(options...)
	pb.RegisterTestServiceServer(server, echo{})
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Stop() // perhaps before Serve was called
		serving.Wait()
	})
}

func connect(t *testing.T, target string, options ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// unary starts a server whose unary calls are limited, and connects to it.
func unary(t *testing.T, lim *penstock.Limiter, o *grpclimit.Options) pb.TestServiceClient {
	t.Helper()
	return connect(t, serve(t, grpc.UnaryInterceptor(grpclimit.UnaryServer(lim, o))))
}

// ask makes n calls with metadata in pairs, and returns their codes.
func ask(t *testing.T, c pb.TestServiceClient, n int, md ...string) (got []codes.Code) {
	t.Helper()
	ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(md...))
	for range n {
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
		got = append(got, status.Code(err))
	}
	return got
}

func expect(t *testing.T, what string, got []codes.Code, want ...codes.Code) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

const exhausted = codes.ResourceExhausted

func TestUnaryServerDeniesOverLimit(t *testing.T) {
	c := unary(t, inMemory(t, "posts: 2/1h"), nil)
	expect(t, "calls", ask(t, c, 2), codes.OK, codes.OK)
	var trailer metadata.MD
	_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.Trailer(&trailer))
	s := status.Convert(err)
	if s.Code() != exhausted || !strings.Contains(s.Message(), "rate limit exceeded, retry in") {
		t.Errorf("denied with %v", err)
	}
	quota, retry := details(t, err)
	if v := quota.GetViolations(); len(v) != 1 || v[0].GetQuotaId() != "posts" || v[0].GetQuotaValue() != 2 || v[0].GetDescription() != "2/1h" {
		t.Errorf("violations %v", v)
	}
	if d := retry.GetRetryDelay().AsDuration(); d <= 29*time.Minute || d > 30*time.Minute {
		t.Errorf("retry delay %v", d)
	}
	if got := trailer.Get("grpc-retry-pushback-ms"); len(got) != 1 || len(got[0]) != 7 {
		t.Errorf("pushback %q, want just below 1800000", got)
	}
}

func details(t *testing.T, err error) (quota *errdetails.QuotaFailure, retry *errdetails.RetryInfo) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.QuotaFailure:
			quota = d
		case *errdetails.RetryInfo:
			retry = d
		default:
			t.Errorf("unexpected detail %T", d)
		}
	}
	return quota, retry
}

func TestDenialOfTooLargeCostHasNoRetryInfo(t *testing.T) {
	o := &grpclimit.Options{Cost: func(context.Context, grpclimit.Call) int64 { return 3 }}
	c := unary(t, inMemory(t, "2/1h"), o)
	var trailer metadata.MD
	_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.Trailer(&trailer))
	if quota, retry := details(t, err); status.Code(err) != exhausted || quota == nil || retry != nil {
		t.Errorf("%v with %v, %v", err, quota, retry)
	}
	if got := trailer.Get("grpc-retry-pushback-ms"); !slices.Equal(got, []string{"-1"}) {
		t.Errorf("pushback %q", got)
	}
}

// Milliseconds are rounded up, so that the call which is repeated passes.
func TestDenialSetsRetryPushback(t *testing.T) {
	for retry, want := range map[time.Duration]string{
		1: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Hour: "3600000", penstock.Never: "-1",
	} {
		got := grpclimit.Pushback([]httplimit.Answer{
			{Decision: penstock.Decision{RetryAfter: retry}}, {Decision: penstock.Decision{Allowed: true, RetryAfter: penstock.Never}},
		})
		if values := got.Get("grpc-retry-pushback-ms"); !slices.Equal(values, []string{want}) {
			t.Errorf("%v: %q, want %s", retry, values, want)
		}
	}
}

// A client that repeats calls by itself does so when it was told to.
func TestAutomaticRetriesObeyPushback(t *testing.T) {
	target := serve(t, grpc.UnaryInterceptor(grpclimit.UnaryServer(inMemory(t, "1/100ms"), nil)))
	c := connect(t, target, grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "100s", "maxBackoff": "100s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	start := time.Now()
	expect(t, "calls", ask(t, c, 4), codes.OK, codes.OK, codes.OK, codes.OK)
	if got := time.Since(start); got < 300*time.Millisecond {
		t.Errorf("four calls at ten a second took %v", got)
	}
}

func TestServerUsesKeyFunctions(t *testing.T) {
	c := unary(t, inMemory(t, "2/1h"), &grpclimit.Options{Key: grpclimit.Metadata("x-api-key")})
	expect(t, "a key", ask(t, c, 3, "x-api-key", "k1"), codes.OK, codes.OK, exhausted)
	expect(t, "another key", ask(t, c, 1, "x-api-key", "k2"), codes.OK)
	expect(t, "no key", ask(t, c, 3), codes.OK, codes.OK, exhausted)
	expect(t, "an empty key", ask(t, c, 1, "x-api-key", ""), exhausted)
	expect(t, "a key that poses as an address", ask(t, c, 1, "x-api-key", "127.0.0.1"), codes.OK)

	c = unary(t, inMemory(t, "2/1h"), &grpclimit.Options{Key: grpclimit.Metadata("key-bin")})
	expect(t, "bytes that pose as an address", ask(t, c, 3, "key-bin", "\x00198.51.100.1"), codes.OK, codes.OK, exhausted)
	expect(t, "the address of a call without a key", ask(t, c, 1), exhausted)
}

func TestServerIdentifiesClientsByAddress(t *testing.T) {
	c := unary(t, inMemory(t, "1/1h"), nil)
	expect(t, "made-up addresses", append(ask(t, c, 1, "x-forwarded-for", "203.0.113.1"), ask(t, c, 1, "x-forwarded-for", "203.0.113.2")...), codes.OK, exhausted)
	c = unary(t, inMemory(t, "1/1h"), &grpclimit.Options{Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	expect(t, "alice, by a proxy", ask(t, c, 2, "x-forwarded-for", "203.0.113.1"), codes.OK, exhausted)
	expect(t, "bob, by a proxy", ask(t, c, 1, "x-forwarded-for", "203.0.113.1, 203.0.113.2"), codes.OK)
}

func TestServerSeveralLimitsAllOrNothing(t *testing.T) {
	store := penstock.NewMemory(nil)
	c := unary(t, limiter(t, store, "ip: 3/1h"), &grpclimit.Options{Additional: []grpclimit.Charge{
		{Limiter: limiter(t, store, "user: 2/1h"), Key: grpclimit.Metadata("x-user")},
		{Limiter: limiter(t, store, "4/1h"), Key: grpclimit.Global},
	}})
	expect(t, "one user", ask(t, c, 4, "x-user", "u1"), codes.OK, codes.OK, exhausted, exhausted)
	expect(t, "another, whom those denials cost nothing", ask(t, c, 1, "x-user", "u2"), codes.OK)
	_, err := c.UnaryCall(metadata.AppendToOutgoingContext(t.Context(), "x-user", "u1"), &pb.SimpleRequest{})
	quota, _ := details(t, err)
	var names []string
	for _, v := range quota.GetViolations() {
		names = append(names, v.GetQuotaId())
	}
	if want := []string{"ip", "user"}; !slices.Equal(names, want) {
		t.Errorf("violated %q, want %q", names, want)
	}
}

func TestServerSkipAndShadow(t *testing.T) {
	var seen []string
	c := unary(t, inMemory(t, "1/1h"), &grpclimit.Options{
		Skip: func(ctx context.Context, call grpclimit.Call) bool {
			md, _ := metadata.FromIncomingContext(ctx)
			return len(md.Get("x-probe")) > 0 && call.Method == "/grpc.testing.TestService/UnaryCall"
		},
		Shadow: func(_ context.Context, call grpclimit.Call, answers []httplimit.Answer) {
			seen = append(seen, fmt.Sprintf("%T %s", call.Message, answers[0].Policy))
		},
	})
	expect(t, "skipped", ask(t, c, 3, "x-probe", "1"), codes.OK, codes.OK, codes.OK)
	expect(t, "in shadow", ask(t, c, 2), codes.OK, codes.OK)
	if want := []string{"*grpc_testing.SimpleRequest 1/1h"}; !slices.Equal(seen, want) {
		t.Errorf("told of %q, want %q", seen, want)
	}
}

func TestServerCallsDenied(t *testing.T) {
	c := unary(t, inMemory(t, "0/1h"), &grpclimit.Options{
		Instead: func(context.Context, grpclimit.Call, []httplimit.Answer) error {
			return status.Error(codes.PermissionDenied, "no")
		},
	})
	expect(t, "denied otherwise", ask(t, c, 1), codes.PermissionDenied)
}

func TestServerStoreFailure(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	lim := limiter(t, broken, "1/1h")
	var seen error
	watch := func(_ context.Context, _ grpclimit.Call, err error) { seen = err }
	expect(t, "by default", ask(t, unary(t, lim, nil), 2), codes.OK, codes.OK)
	expect(t, "watched", ask(t, unary(t, lim, &grpclimit.Options{OnError: watch}), 1), codes.OK)
	if !errors.Is(seen, penstock.ErrUnavailable) {
		t.Errorf("told of %v", seen)
	}
	expect(t, "refused", ask(t, unary(t, lim, &grpclimit.Options{Unavailable: grpclimit.ServiceUnavailable}), 1), codes.Unavailable)
	free := func(context.Context, grpclimit.Call) int64 { return 0 }
	expect(t, "what costs nothing", ask(t, unary(t, lim, &grpclimit.Options{Unavailable: grpclimit.ServiceUnavailable, Cost: free}), 1), codes.OK)
	shadow := func(context.Context, grpclimit.Call, []httplimit.Answer) {}
	expect(t, "in shadow", ask(t, unary(t, lim, &grpclimit.Options{Unavailable: grpclimit.ServiceUnavailable, Shadow: shadow}), 1), codes.OK)
}

// A crowd for which the store is too slow does not pass, even though an outage would let it.
func TestServerBusyStoreLetsNobodyPass(t *testing.T) {
	busy := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, fmt.Errorf("remote: %w: %w", penstock.ErrBusy, context.DeadlineExceeded)
	})
	lim := limiter(t, busy, "1/1h")
	expect(t, "by default", ask(t, unary(t, lim, nil), 2), codes.Unavailable, codes.Unavailable)
	pass := func(context.Context, grpclimit.Call, error) error { return nil }
	expect(t, "passing", ask(t, unary(t, lim, &grpclimit.Options{Unavailable: pass}), 1), codes.OK)
	free := func(context.Context, grpclimit.Call) int64 { return 0 }
	expect(t, "what costs nothing", ask(t, unary(t, lim, &grpclimit.Options{Cost: free}), 1), codes.OK)
}

// A memory limit holds while the shared store is down: calls that pass are charged
// to it, denied ones are not.
func TestServerMemoryLimitHoldsWhileOtherStoreIsDown(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	also := []grpclimit.Charge{{Limiter: inMemory(t, "2/1h")}}
	refusing := unary(t, limiter(t, broken, "9/1h"), &grpclimit.Options{Additional: also, Unavailable: grpclimit.ServiceUnavailable})
	expect(t, "refused", ask(t, refusing, 3), codes.Unavailable, codes.Unavailable, codes.Unavailable)
	passing := unary(t, limiter(t, broken, "9/1h"), &grpclimit.Options{Additional: also})
	expect(t, "passing", ask(t, passing, 3), codes.OK, codes.OK, exhausted)
	expect(t, "refused by the shield", ask(t, refusing, 1), exhausted)
}

// Over a Unix socket or an in-memory connection clients have no address. They do not
// share a bucket; a key identifies them.
func TestServerUnknownClientIsUndecided(t *testing.T) {
	socket, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	memory := bufconn.Listen(1 << 16)
	inside := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) })
	for _, on := range []struct {
		listener net.Listener
		target   string
		dial     grpc.DialOption
	}{
		{socket, "unix:" + socket.Addr().String(), grpc.EmptyDialOption{}},
		{memory, "passthrough:memory", inside},
	} {
		var seen []error
		serveOn(t, on.listener, grpc.UnaryInterceptor(grpclimit.UnaryServer(inMemory(t, "1/1h"), &grpclimit.Options{
			Key:     grpclimit.Metadata("x-api-key"),
			OnError: func(_ context.Context, _ grpclimit.Call, err error) { seen = append(seen, err) },
		})))
		c := connect(t, on.target, on.dial)
		expect(t, on.target+": calls without a key", ask(t, c, 2), codes.OK, codes.OK)
		expect(t, on.target+": a key", ask(t, c, 2, "x-api-key", "k"), codes.OK, exhausted)
		if len(seen) != 2 || !errors.Is(seen[0], penstock.ErrBadKey) {
			t.Errorf("%s: told of %v", on.target, seen)
		}
	}
}

// A call that makes its cost negative neither undoes limits nor passes by them.
func TestServerRejectsNegativeCosts(t *testing.T) {
	lim := inMemory(t, "10/1h")
	c := unary(t, lim, &grpclimit.Options{
		Key: grpclimit.Global,
		Cost: func(ctx context.Context, _ grpclimit.Call) int64 {
			n, _ := strconv.ParseInt(strings.Join(metadata.ValueFromIncomingContext(ctx, "x-cost"), ""), 10, 64)
			return n
		},
		Unavailable: func(context.Context, grpclimit.Call, error) error { return nil },
	})
	expect(t, "an honest call", ask(t, c, 1, "x-cost", "6"), codes.OK)
	expect(t, "a negative cost", ask(t, c, 1, "x-cost", "-6"), codes.InvalidArgument)
	expect(t, "a reset", ask(t, c, 1, "x-cost", "-9223372036854775808"), codes.InvalidArgument)
	expect(t, "what remains", ask(t, c, 2, "x-cost", "4"), codes.OK, exhausted)
}

// What comes through a header is charged by the first value, and never by that of
// another name.
func TestMetadataIsKey(t *testing.T) {
	key := grpclimit.Metadata("X-API-Key")
	for _, test := range []struct {
		md   metadata.MD
		want string
	}{
		{nil, ""},
		{metadata.Pairs("x-api-key", "a"), "a"},
		{metadata.Pairs("x-api-key", "a", "x-api-key", "b"), "a"},
		{metadata.Pairs("X-Api-Key", "a"), "a"},
		{metadata.Pairs("x-api", "a", "x-api-key2", "b"), ""},
	} {
		if got := key(metadata.NewIncomingContext(t.Context(), test.md), grpclimit.Call{}); got != test.want {
			t.Errorf("%v: %q, want %q", test.md, got, test.want)
		}
	}
	if got := key(t.Context(), grpclimit.Call{}); got != "" {
		t.Errorf("outside of a call: %q", got)
	}
}

// send sends n messages in one call and returns how many the server counted.
func send(t *testing.T, c pb.TestServiceClient, n int) (int32, error) {
	t.Helper()
	stream, err := c.StreamingInputCall(t.Context())
	if err != nil {
		return 0, err
	}
	for range n {
		if err := stream.Send(&pb.StreamingInputCallRequest{}); err != nil {
			break // CloseAndRecv knows why
		}
	}
	reply, err := stream.CloseAndRecv()
	return reply.GetAggregatedPayloadSize(), err
}

func TestStreamServerChargesOnce(t *testing.T) {
	c := connect(t, serve(t, grpc.StreamInterceptor(grpclimit.StreamServer(inMemory(t, "calls: 2/1h"), nil))))
	for range 2 {
		if n, err := send(t, c, 10); n != 10 || err != nil {
			t.Errorf("%d messages, %v", n, err)
		}
	}
	_, err := send(t, c, 10)
	if quota, retry := details(t, err); status.Code(err) != exhausted || quota == nil || retry == nil {
		t.Errorf("the third call: %v", err)
	}
}

func TestMessageServerChargesEachMessage(t *testing.T) {
	size := func(_ context.Context, call grpclimit.Call) int64 {
		if _, ok := call.Message.(*pb.StreamingInputCallRequest); !ok {
			t.Errorf("charged for a %T", call.Message)
		}
		return 2
	}
	c := connect(t, serve(t, grpc.StreamInterceptor(grpclimit.MessageServer(inMemory(t, "10/1h"), &grpclimit.Options{Cost: size}))))
	if n, err := send(t, c, 3); n != 3 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
	_, err := send(t, c, 3)
	if quota, retry := details(t, err); status.Code(err) != exhausted || quota == nil || retry == nil {
		t.Errorf("the sixth message: %v", err)
	}
}

// After a message too many, whatever a handler does, it gets no more of them, and
// the client is told why.
func TestMessageServerFailsAfterDenial(t *testing.T) {
	intercept := grpclimit.MessageServer(inMemory(t, "1/1h"), &grpclimit.Options{Key: grpclimit.Global})
	stream := &endless{ctx: t.Context()}
	err := intercept(nil, stream, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
		for i, want := range []codes.Code{codes.OK, exhausted, exhausted, exhausted} {
			if got := status.Code(ss.RecvMsg(nil)); got != want {
				t.Errorf("message %d: %v, want %v", i, got, want)
			}
		}
		return nil // as if nothing had happened
	})
	if quota, retry := details(t, err); status.Code(err) != exhausted || quota == nil || retry == nil {
		t.Errorf("the call ended with %v", err)
	}
	if stream.received != 2 {
		t.Errorf("%d messages were received", stream.received)
	}
}

// A leaky bucket delays calls that come too fast.
func TestServerHoldsLeakyBucketCalls(t *testing.T) {
	c := connect(t, serve(t, grpc.StreamInterceptor(grpclimit.MessageServer(inMemory(t, "1/20ms leaky-bucket burst=100"), nil))))
	start := time.Now()
	if n, err := send(t, c, 6); n != 6 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
	if got := time.Since(start); got < 100*time.Millisecond {
		t.Errorf("six messages, one every 20ms, took %v", got)
	}
	slow := unary(t, inMemory(t, "1/1h leaky-bucket burst=10"), nil)
	expect(t, "the first", ask(t, slow, 1), codes.OK)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := slow.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one that is held for an hour: %v", err)
	}
}

// A handler may return while another goroutine still receives.
func TestMessageServerDenialOnOtherGoroutine(t *testing.T) {
	intercept := grpclimit.MessageServer(inMemory(t, "1/1h"), &grpclimit.Options{Key: grpclimit.Global})
	received := make(chan struct{})
	err := intercept(nil, &endless{ctx: t.Context()}, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
		go func() {
			defer close(received)
			for ss.RecvMsg(nil) == nil { // until it is one too many
			}
		}()
		return nil
	})
	if err != nil && status.Code(err) != exhausted {
		t.Error(err)
	}
	<-received
}

// endless is a stream in which messages never end.
type endless struct {
	grpc.ServerStream
	ctx      context.Context
	received int
}

func (e *endless) Context() context.Context { return e.ctx }
func (e *endless) RecvMsg(any) error        { e.received++; return nil }
func (*endless) SendMsg(any) error          { return nil }
func (*endless) SetTrailer(metadata.MD)     {}
