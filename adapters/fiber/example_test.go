package fiberlimit_test

import (
	"net/http"

	"github.com/gofiber/fiber/v3"

	"github.com/penstock-io/penstock"
	fiberlimit "github.com/penstock-io/penstock/adapters/fiber"
	"github.com/penstock-io/penstock/httplimit"
)

func ExampleAdapt() { use(fiber.New(), &penstock.Limiter{}) }

func use(app *fiber.App, perUser *penstock.Limiter) {
	app.Use(fiberlimit.Adapt(httplimit.Protect(perUser, &httplimit.Options{
		Key: func(r *http.Request) string { return fiber.Locals[string](fiberlimit.Context(r), "user") },
	})))
}
