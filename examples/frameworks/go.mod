module github.com/penstock-io/penstock/examples/frameworks

go 1.26.0

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/penstock-io/penstock v0.0.0
)

replace github.com/penstock-io/penstock => ../../
