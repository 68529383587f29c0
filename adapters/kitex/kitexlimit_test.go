package kitexlimit_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/bytedance/gopkg/cloud/metainfo"
	"github.com/cloudwego/kitex/client"
	"github.com/cloudwego/kitex/client/genericclient"
	"github.com/cloudwego/kitex/pkg/generic"
	"github.com/cloudwego/kitex/pkg/klog"
	"github.com/cloudwego/kitex/pkg/transmeta"
	"github.com/cloudwego/kitex/server"
	"github.com/cloudwego/kitex/server/genericserver"
	"github.com/cloudwego/kitex/transport"
	"google.golang.org/grpc"

	"github.com/penstock-io/penstock"
	kitexlimit "github.com/penstock-io/penstock/adapters/kitex"
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

// hello is a service without generated code.
func hello(t *testing.T) generic.Generic {
	t.Helper()
	idl, err := generic.NewThriftContentWithAbsIncludePathProvider("hello.thrift",
		map[string]string{"hello.thrift": "service Hello { string Say(1: string name) }"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := generic.JSONThriftGeneric(idl)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

type handler struct{}

func (*handler) GenericCall(_ context.Context, _ string, request any) (any, error) {
	if strings.Contains(request.(string), "nobody") {
		return nil, errors.New("nobody is here")
	}
	return request, nil
}

// serve starts a server behind interceptors, and returns a client of it.
func serve(t *testing.T, interceptors ...grpc.UnaryServerInterceptor) genericclient.Client {
	t.Helper()
	klog.SetLevel(klog.LevelFatal)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options := []server.Option{server.WithListener(l), server.WithMetaHandler(transmeta.ServerTTHeaderHandler)}
	for _, i := range interceptors {
		options = append(options, server.WithMiddleware(kitexlimit.Adapt(i)))
	}
	s := genericserver.NewServer(&handler{}, hello(t), options...)
	go func() { _ = s.Run() }() // until Stop
	t.Cleanup(func() { _ = s.Stop() })
	c, err := genericclient.NewClient("hello", hello(t), client.WithHostPorts(l.Addr().String()),
		client.WithTransportProtocol(transport.TTHeader), client.WithMetaHandler(transmeta.ClientTTHeaderHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAdaptedInterceptorLimitsByRules(t *testing.T) {
	rules, err := rulelimit.Open(t.Context(), "../internal/adaptertest/testdata/shop.yaml", penstock.NewMemory(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	c := serve(t, grpclimit.UnaryServer(nil, &grpclimit.Options{Rules: &grpclimit.Rules{
		Limiter: rules, Domain: "shop", Descriptors: [][]grpclimit.Entry{{{Key: "user", Value: grpclimit.Metadata("user")}}},
	}}))
	for i := range 3 {
		_, err := c.GenericCall(metainfo.WithValue(t.Context(), "USER", "ada"), "Say", `"ada"`)
		if denied := err != nil && strings.Contains(err.Error(), "request over limit"); denied != (i == 2) || err != nil && !denied {
			t.Errorf("call %d of two that the rule allows: %v", i, err)
		}
	}
}

func TestAdaptedInterceptorLimits(t *testing.T) {
	var method string
	byUser := grpclimit.UnaryServer(limiter(t, penstock.PerHour(1)), &grpclimit.Options{
		Key: func(ctx context.Context, call grpclimit.Call) string {
			method = call.Method
			return grpclimit.Metadata("user")(ctx, call)
		},
	})
	byAddress := grpclimit.UnaryServer(limiter(t, penstock.PerHour(2)), nil)
	c := serve(t, byUser, byAddress)
	for i, test := range []struct{ user, name, wantErr string }{
		{"ada", "ada", ""},
		{"ada", "ada", "request over limit"},
		{"eve", "nobody", "nobody is here"},
		{"ida", "ida", "request over limit"}, // by the address
	} {
		reply, err := c.GenericCall(metainfo.WithValue(t.Context(), "USER", test.user), "Say", `"`+test.name+`"`)
		switch {
		case test.wantErr == "" && (err != nil || reply != test.name):
			t.Errorf("call %d: %v, %v, want %q", i, reply, err, test.name)
		case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
			t.Errorf("call %d: %v, %v, want %q", i, reply, err, test.wantErr)
		}
	}
	if method != "/Hello/Say" {
		t.Errorf("the method is %q", method)
	}
}
