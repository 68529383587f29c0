// Gin is a service whose users share a limit over all its processes: 100 requests a minute each, counted in Redis.
//
//	cd examples/frameworks && go run ./gin
//	curl -H 'X-User: 42' localhost:8080/orders
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	"github.com/penstock-io/penstock"
	ginlimit "github.com/penstock-io/penstock/adapters/gin"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/redisstore"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	redis, err := redisstore.Open(ctx, "redis://localhost:6379", &redisstore.Options{AllowUnavailable: true})
	if err != nil {
		return err
	}
	perUser, err := penstock.New(penstock.WithFallback(redis, nil, nil), penstock.PerMinute(100))
	if err != nil {
		return err
	}
	return router(perUser).Run("localhost:8080")
}

func router(perUser *penstock.Limiter) *gin.Engine {
	r := gin.Default()
	r.Use(ginlimit.Adapt(httplimit.Protect(perUser, &httplimit.Options{Key: httplimit.Header("X-User")})))
	r.GET("/orders", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	return r
}
