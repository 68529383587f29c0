// Gin limits a service that is built with gin, whose middleware has a type of its own:
// [adapt] converts middleware of the standard library.
//
//	cd examples/frameworks && go run ./gin
//	curl -i localhost:8080/tenants/acme             # four times
//	curl -i -X POST 'localhost:8080/login?as=eve'   # three times
package main

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Send four requests: curl -i localhost:8080/tenants/acme")
}

// adapt converts middleware to a gin handler. The rest of gin's chain runs inside it with
// gin's own writer, and does not run if the request is denied.
func adapt(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		allowed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			allowed = true
			c.Request = r
			c.Next()
		})
		for _, p := range c.Params {
			c.Request.SetPathValue(p.Key, p.Value)
		}
		middleware(next).ServeHTTP(c.Writer, c.Request)
		if !allowed {
			c.Abort()
		}
	}
}

func handler(store penstock.Store) (http.Handler, error) {
	perTenant, err := penstock.New(store, penstock.PerMinute(3).WithName("tenant"))
	if err != nil {
		return nil, err
	}
	logins, err := penstock.New(store, penstock.PerMinute(2).WithName("logins"))
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/tenants/:tenant", adapt(httplimit.Protect(perTenant, &httplimit.Options{Key: httplimit.PathValue("tenant")})),
		func(c *gin.Context) { c.String(http.StatusOK, "hello, %s\n", c.Param("tenant")) })
	r.POST("/login", adapt(httplimit.Protect(logins, &httplimit.Options{After: httplimit.OnlyFailures})),
		func(c *gin.Context) {
			if c.Query("as") != "ada" {
				c.AbortWithStatus(http.StatusUnauthorized)
			}
		})
	return r, nil
}
