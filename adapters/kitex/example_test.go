package kitexlimit_test

import (
	"github.com/cloudwego/kitex/server"

	"github.com/penstock-io/penstock"
	kitexlimit "github.com/penstock-io/penstock/adapters/kitex"
	"github.com/penstock-io/penstock/grpclimit"
)

func ExampleAdapt() { newServer(&penstock.Limiter{}) }

func newServer(perUser *penstock.Limiter) server.Server {
	return server.NewServer(server.WithMiddleware(kitexlimit.Adapt(
		grpclimit.UnaryServer(perUser, &grpclimit.Options{Key: grpclimit.Metadata("user")}),
	)))
}
