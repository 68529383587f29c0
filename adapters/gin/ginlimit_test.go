package ginlimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	ginlimit "github.com/penstock-io/penstock/adapters/gin"
	"github.com/penstock-io/penstock/adapters/internal/adaptertest"
	"github.com/penstock-io/penstock/httplimit"
)

func TestAdaptedMiddlewareLimits(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	m := adaptertest.New(t, func(r *http.Request) string { return ginlimit.Context(r).GetString("user") })
	e := gin.New()
	e.Use(func(c *gin.Context) { c.Set("user", c.GetHeader("X-User")) })
	e.GET("/tenants/:tenant", ginlimit.Adapt(m.All), ginlimit.Adapt(m.Tenant), func(c *gin.Context) {
		c.Header("X-Served", "yes")
		c.String(200, "hello, %s", c.Param("tenant"))
	})
	e.POST("/login", ginlimit.Adapt(m.Logins), func(c *gin.Context) {
		if c.Query("as") != "ada" {
			c.AbortWithStatus(401)
		}
	})
	e.GET("/me", ginlimit.Adapt(m.User), func(*gin.Context) {})
	e.GET("/tokens", ginlimit.Adapt(m.Tokens), func(c *gin.Context) { httplimit.SetCost(c.Request.Context(), 3) })
	e.GET("/slot", ginlimit.Adapt(m.Slots), func(c *gin.Context) { c.String(200, m.Held()) })
	e.GET("/search", ginlimit.Adapt(m.Rules), func(*gin.Context) {})
	server := httptest.NewServer(e)
	defer server.Close()
	m.Check(t, server.URL)
}
