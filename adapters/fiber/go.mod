module github.com/penstock-io/penstock/adapters/fiber

go 1.26.0

toolchain go1.26.11

require (
	github.com/gofiber/fiber/v3 v3.1.0
	github.com/penstock-io/penstock v0.1.0
)

require (
	github.com/andybalholm/brotli v1.2.0 // indirect
	github.com/gaissmai/bart v0.30.0 // indirect
	github.com/gofiber/schema v1.7.0 // indirect
	github.com/gofiber/utils/v2 v2.0.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/compress v1.18.4 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/philhofer/fwd v1.2.0 // indirect
	github.com/tinylib/msgp v1.6.3 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasthttp v1.69.0 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

// For development only: programs that require this module use the version above.
replace github.com/penstock-io/penstock => ../..
