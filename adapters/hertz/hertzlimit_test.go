package hertzlimit_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/cloudwego/hertz/pkg/app"
	"github.com/cloudwego/hertz/pkg/app/server"

	hertzlimit "github.com/penstock-io/penstock/adapters/hertz"
	"github.com/penstock-io/penstock/adapters/internal/adaptertest"
	"github.com/penstock-io/penstock/httplimit"
)

func TestAdaptedMiddlewareLimits(t *testing.T) {
	m := adaptertest.New(t, func(r *http.Request) string { return hertzlimit.Context(r).GetString("user") })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := server.New(server.WithListener(l))
	h.Use(func(_ context.Context, c *app.RequestContext) { c.Set("user", string(c.GetHeader("X-User"))) })
	h.GET("/tenants/:tenant", hertzlimit.Adapt(m.All), hertzlimit.Adapt(m.Tenant), func(_ context.Context, c *app.RequestContext) {
		c.Header("X-Served", "yes")
		c.String(200, "hello, "+c.Param("tenant"))
	})
	h.POST("/login", hertzlimit.Adapt(m.Logins), func(_ context.Context, c *app.RequestContext) {
		if c.Query("as") != "ada" {
			c.AbortWithStatus(401)
		}
	})
	h.GET("/me", hertzlimit.Adapt(m.User), func(context.Context, *app.RequestContext) {})
	h.GET("/tokens", hertzlimit.Adapt(m.Tokens), func(ctx context.Context, _ *app.RequestContext) { httplimit.SetCost(ctx, 3) })
	h.GET("/slot", hertzlimit.Adapt(m.Slots), func(_ context.Context, c *app.RequestContext) { c.String(200, m.Held()) })
	h.GET("/search", hertzlimit.Adapt(m.Rules), func(context.Context, *app.RequestContext) {})
	go func() { _ = h.Run() }() // until Close
	t.Cleanup(func() { _ = h.Close() })
	m.Check(t, "http://"+l.Addr().String())
}
