module github.com/penstock-io/penstock/server/page/pagetest

go 1.26.0

toolchain go1.26.11

require (
	github.com/chromedp/cdproto v0.159.1
	github.com/chromedp/chromedp v0.22.0
	github.com/penstock-io/penstock v0.0.0
)

require (
	github.com/gaissmai/bart v0.30.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/penstock-io/penstock => ../../..
