module github.com/penstock-io/penstock/adapters/echo

go 1.26.0

toolchain go1.26.11

require (
	github.com/labstack/echo/v5 v5.3.1
	github.com/penstock-io/penstock v0.1.0
)

require (
	github.com/gaissmai/bart v0.30.0 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
)

// For development only: programs that require this module use the version above.
replace github.com/penstock-io/penstock => ../..
