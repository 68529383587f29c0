package zerolimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/zeromicro/go-zero/core/conf"
	"github.com/zeromicro/go-zero/rest"
	"github.com/zeromicro/go-zero/rest/pathvar"

	zerolimit "github.com/penstock-io/penstock/adapters/go-zero"
	"github.com/penstock-io/penstock/adapters/internal/adaptertest"
	"github.com/penstock-io/penstock/httplimit"
)

type userKey struct{}

func TestAdaptedMiddlewareLimits(t *testing.T) {
	m := adaptertest.New(t, func(r *http.Request) string { return r.Context().Value(userKey{}).(string) })
	var c rest.RestConf
	if err := conf.LoadFromYamlBytes([]byte("{Name: shop, Port: 8888, Log: {Level: severe, Stat: false}}"), &c); err != nil {
		t.Fatal(err)
	}
	s, err := rest.NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Use(func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			next(w, r.WithContext(context.WithValue(r.Context(), userKey{}, r.Header.Get("X-User"))))
		}
	})
	add := func(method, path string, h http.HandlerFunc, limits ...func(http.Handler) http.Handler) {
		var all []rest.Middleware
		for _, limit := range limits {
			all = append(all, zerolimit.Adapt(limit))
		}
		s.AddRoutes(rest.WithMiddlewares(all, rest.Route{Method: method, Path: path, Handler: h}))
	}
	add("GET", "/tenants/:tenant", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Served", "yes")
		_, _ = fmt.Fprint(w, "hello, "+pathvar.Vars(r)["tenant"])
	}, m.All, m.Tenant)
	add("POST", "/login", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("as") != "ada" {
			w.WriteHeader(401)
		}
	}, m.Logins)
	add("GET", "/me", func(http.ResponseWriter, *http.Request) {}, m.User)
	add("GET", "/tokens", func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 3) }, m.Tokens)
	add("GET", "/slot", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, m.Held()) }, m.Slots)
	add("GET", "/search", func(http.ResponseWriter, *http.Request) {}, m.Rules)
	serverless, err := rest.NewServerless(s)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(serverless.Serve))
	defer server.Close()
	m.Check(t, server.URL)
}
