package fiberlimit_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/gofiber/fiber/v3"

	fiberlimit "github.com/penstock-io/penstock/adapters/fiber"
	"github.com/penstock-io/penstock/adapters/internal/adaptertest"
	"github.com/penstock-io/penstock/httplimit"
)

func TestAdaptedMiddlewareLimits(t *testing.T) {
	m := adaptertest.New(t, func(r *http.Request) string { return fiberlimit.Context(r).Locals("user").(string) })
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Locals("user", string([]byte(c.Get("X-User"))))
		return c.Next()
	})
	app.Get("/tenants/:tenant", fiberlimit.Adapt(m.All), fiberlimit.Adapt(m.Tenant), func(c fiber.Ctx) error {
		c.Set("X-Served", "yes")
		return c.SendString("hello, " + c.Params("tenant"))
	})
	app.Post("/login", fiberlimit.Adapt(m.Logins), func(c fiber.Ctx) error {
		if c.Query("as") != "ada" {
			return fiber.ErrUnauthorized
		}
		return nil
	})
	app.Get("/me", fiberlimit.Adapt(m.User), func(fiber.Ctx) error { return nil })
	app.Get("/tokens", fiberlimit.Adapt(m.Tokens), func(c fiber.Ctx) error {
		httplimit.SetCost(c.Context(), 3)
		return nil
	})
	app.Get("/slot", fiberlimit.Adapt(m.Slots), func(c fiber.Ctx) error { return c.SendString(m.Held()) })
	app.Get("/search", fiberlimit.Adapt(m.Rules), func(fiber.Ctx) error { return nil })
	m.Check(t, "http://"+listen(t, app))
}

func listen(t *testing.T, app *fiber.App) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }() // until Shutdown
	t.Cleanup(func() { _ = app.Shutdown() })
	return l.Addr().String()
}
