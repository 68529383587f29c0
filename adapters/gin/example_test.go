package ginlimit_test

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/penstock-io/penstock"
	ginlimit "github.com/penstock-io/penstock/adapters/gin"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rulelimit"
)

func ExampleAdapt() { _ = run(gin.Default(), nil) }

func run(router *gin.Engine, perTenant *penstock.Limiter) error {
	router.GET("/orders/:tenant", ginlimit.Adapt(httplimit.Protect(perTenant, &httplimit.Options{
		Key: httplimit.PathValue("tenant"),
	})), listOrders)
	return router.Run(":8080")
}

func ExampleAdapt_rules() { _ = runByRules(context.Background(), penstock.NewMemory(nil)) }

func runByRules(ctx context.Context, store penstock.Store) error {
	rules, err := rulelimit.Open(ctx, "rules.yaml", store, nil)
	if err != nil {
		return err
	}
	defer func() { _ = rules.Close() }()
	router := gin.Default()
	router.Use(ginlimit.Adapt(httplimit.Protect(nil, &httplimit.Options{Rules: &httplimit.Rules{
		Limiter: rules, Domain: "shop",
		Descriptors: [][]httplimit.Entry{
			{{Key: "user", Value: func(r *http.Request) string { return ginlimit.Context(r).GetString("user") }}},
			{{Key: "address"}},
			{{Key: "path", Value: httplimit.Path}, {Key: "method", Value: httplimit.Method}},
		},
	}})))
	return router.Run(":8080")
}

func listOrders(*gin.Context) {}
