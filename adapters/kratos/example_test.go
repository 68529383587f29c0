package kratoslimit_test

import (
	"github.com/go-kratos/kratos/v2/transport/grpc"
	"github.com/go-kratos/kratos/v2/transport/http"

	"github.com/penstock-io/penstock"
	kratoslimit "github.com/penstock-io/penstock/adapters/kratos"
	"github.com/penstock-io/penstock/grpclimit"
)

func ExampleAdapt() { servers(nil) }

func servers(rules penstock.RuleLimiter) (*http.Server, *grpc.Server) {
	limit := kratoslimit.Adapt(grpclimit.UnaryServer(nil, &grpclimit.Options{Rules: &grpclimit.Rules{
		Limiter: rules, Domain: "shop",
		Descriptors: [][]grpclimit.Entry{
			{{Key: "user", Value: grpclimit.Metadata("x-user")}},
			{{Key: "operation", Value: grpclimit.Method}},
		},
	}}))
	return http.NewServer(http.Middleware(limit)), grpc.NewServer(grpc.Middleware(limit))
}
