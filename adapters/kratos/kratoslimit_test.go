package kratoslimit_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/go-kratos/kratos/v2/errors"
	kgrpc "github.com/go-kratos/kratos/v2/transport/grpc"
	khttp "github.com/go-kratos/kratos/v2/transport/http"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	kratoslimit "github.com/penstock-io/penstock/adapters/kratos"
	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/rulelimit"
)

func limiter(t *testing.T, limit penstock.Limit) *penstock.Limiter {
	t.Helper()
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// byRules returns an interceptor that limits users by a rule file.
func byRules(t *testing.T, user string) grpc.UnaryServerInterceptor {
	t.Helper()
	rules, err := rulelimit.Open(t.Context(), "../internal/adaptertest/testdata/shop.yaml", penstock.NewMemory(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	return grpclimit.UnaryServer(nil, &grpclimit.Options{Rules: &grpclimit.Rules{
		Limiter: rules, Domain: "shop", Descriptors: [][]grpclimit.Entry{{{Key: "user", Value: grpclimit.Metadata(user)}}},
	}})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAdaptedInterceptorLimitsHTTP(t *testing.T) {
	byAddress := kratoslimit.Adapt(grpclimit.UnaryServer(limiter(t, penstock.PerHour(2)), nil))
	var method string
	byUser := kratoslimit.Adapt(grpclimit.UnaryServer(limiter(t, penstock.PerHour(1)), &grpclimit.Options{
		Key: func(ctx context.Context, call grpclimit.Call) string {
			method = call.Method
			return grpclimit.Metadata("x-user")(ctx, call)
		},
	}))
	l := listen(t)
	server := khttp.NewServer(khttp.Listener(l), khttp.Middleware(byUser, byAddress))
	server.Route("/").GET("/hello", func(c khttp.Context) error {
		khttp.SetOperation(c, "/hello.Hello/Say")
		reply, err := c.Middleware(func(context.Context, any) (any, error) {
			if c.Query().Get("fail") != "" {
				return nil, errors.BadRequest("WRONG", "wrong")
			}
			return "hello", nil
		})(c, nil)
		if err != nil {
			return err
		}
		return c.String(200, reply.(string))
	})
	go func() { _ = server.Start(context.Background()) }() // until Stop
	t.Cleanup(func() { _ = server.Stop(context.Background()) })
	for i, test := range []struct {
		user, query  string
		want         int
		reason, body string
	}{
		{"ada", "", 200, "", "hello"},
		{"ada", "", 429, "RATELIMIT", ""},
		{"eve", "?fail=1", 400, "WRONG", ""},
		{"ida", "", 429, "RATELIMIT", ""}, // by the address
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/hello"+test.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", test.user)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var answer errors.Error
		_ = json.Unmarshal(body, &answer) // what is no error has no reason
		if err != nil || resp.StatusCode != test.want || answer.Reason != test.reason || test.body != "" && string(body) != test.body {
			t.Errorf("request %d: %d %s, %v, want %d %s", i, resp.StatusCode, body, err, test.want, test.reason)
		}
		if retry := resp.Header.Get("Retry-After"); (retry != "") != (test.want == 429) {
			t.Errorf("request %d: Retry-After %q", i, retry)
		}
	}
	if method != "/hello.Hello/Say" {
		t.Errorf("the method is %q, want the operation", method)
	}
}

type echo struct {
	pb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Username: "hello"}, nil
}

func TestAdaptedInterceptorLimitsGRPC(t *testing.T) {
	byLimit := grpclimit.UnaryServer(limiter(t, penstock.PerHour(1)), &grpclimit.Options{Key: grpclimit.Metadata("x-user")})
	t.Run("by a limit", func(t *testing.T) { testGRPC(t, byLimit, 1) })
	t.Run("by rules", func(t *testing.T) { testGRPC(t, byRules(t, "x-user"), 2) })
}

// testGRPC makes a call more than is allowed.
func testGRPC(t *testing.T, byUser grpc.UnaryServerInterceptor, allowed int) {
	l := listen(t)
	server := kgrpc.NewServer(kgrpc.Listener(l), kgrpc.Middleware(kratoslimit.Adapt(byUser)))
	pb.RegisterTestServiceServer(server, echo{})
	go func() { _ = server.Start(context.Background()) }() // until Stop
	t.Cleanup(func() { _ = server.Stop(context.Background()) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for i := range allowed + 1 {
		want := codes.OK
		if i == allowed {
			want = codes.ResourceExhausted
		}
		_, err := pb.NewTestServiceClient(conn).UnaryCall(metadata.AppendToOutgoingContext(t.Context(), "x-user", "ada"), &pb.SimpleRequest{})
		if status.Code(err) != want || want != codes.OK && len(status.Convert(err).Details()) == 0 {
			t.Errorf("call %d: %v, want %v with details", i, err, want)
		}
	}
}
