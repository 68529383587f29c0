# Everything here needs Go and make; `make test` installs the rest by itself.

SHELL := bash
.DEFAULT_GOAL := help

# Every directory with a go.mod is a module; the root is one of them. A
# workspace file must not hide what a module lacks.
MODULES := $(sort $(dir $(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*')))
NESTED  := $(filter-out ./,$(MODULES))
export GOWORK := off

# The newest golangci-lint that the module proxy serves with all it depends on.
LINT_VERSION := v2.14.0
LINT         := $(CURDIR)/.bin/$(LINT_VERSION)/golangci-lint

FUZZTIME ?= 30s

# A test that takes longer than this hangs, and its stacks say where.
# Packages wait for servers more than they compute, so more of them run than there
# are processors.
TEST_FLAGS := -shuffle=on -timeout=10m -p 4
RACE_TEST  := CGO_ENABLED=1 go test -race

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Start the daemon and print what to try; ARGS="--http :9090" for other settings
	@.bin/penstock serve --try --rules examples/rules.yaml $(ARGS)

.PHONY: build
build: ## Build the daemon into .bin/penstock
	go build -o .bin/penstock ./cmd/penstock

.PHONY: quickstart
quickstart: ## Show what a limit does; LIMIT="5/2s sliding-log" for another
	@go run ./examples/quickstart "$(LIMIT)"

.PHONY: test
test: setup vet unit race nested lint-if-installable ## Run everything that must pass before a change goes in
	@echo "all tests passed"

# What the tests run for real, and the Debian packages that bring it. They are
# tested with nothing less.
PROGRAMS := redis-server:redis-server redis-benchmark:redis-tools nginx:nginx-light caddy:caddy curl:curl

.PHONY: setup
setup: ## Install what the tests need and this machine lacks
	@$(RACE_TEST) -run '^$$' errors >/dev/null || $(MAKE) --no-print-directory install PACKAGES="gcc libc6-dev"
	@missing=; for program in $(PROGRAMS); do \
		command -v $${program%:*} >/dev/null || missing="$$missing $${program#*:}"; \
	done; \
	if [ -n "$$missing" ]; then $(MAKE) --no-print-directory install PACKAGES="$$missing"; fi

.PHONY: install
install:
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "the tests need what these packages of Debian bring: $(PACKAGES); install it, then run make again" >&2; \
		exit 1; \
	fi
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(PACKAGES)

.PHONY: vet
vet: ## Check formatting and run go vet, for 32 bits too
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	GOOS=linux GOARCH=386 CGO_ENABLED=0 go vet ./...

.PHONY: unit
unit: ## Run the tests of the main module
	go test $(TEST_FLAGS) ./...

.PHONY: race
race: setup ## Run the tests of the main module with the race detector; properties try fewer cases
	$(RACE_TEST) $(TEST_FLAGS) -short ./...

.PHONY: nested
nested: ## Vet and test the nested modules
	@set -e; for module in $(NESTED); do \
		echo "module $$module"; \
		(cd $$module && go vet ./... && go test -short $(TEST_FLAGS) ./...); \
	done

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@set -e; \
	targets=$$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's|/[^/]*:func |:|'); \
	if [ -z "$$targets" ]; then echo "no fuzz targets found" >&2; exit 1; fi; \
	for target in $$targets; do \
		echo "fuzz $$target"; \
		(cd $${target%:*} && go test -run '^$$' -fuzz "^$${target##*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime=1x .); \
	done

.PHONY: lint
lint: $(LINT) ## Run golangci-lint on every module
	@set -e; for module in $(MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(LINT) run ./...); \
	done

# Building the linter takes a network and two to three minutes, once. Where it
# cannot be had, the tests are still worth running, and say what was left out.
.PHONY: lint-if-installable
lint-if-installable:
	@if $(MAKE) --no-print-directory $(LINT); then \
		$(MAKE) --no-print-directory lint; \
	else \
		echo "lint skipped: golangci-lint $(LINT_VERSION) could not be installed"; \
	fi

$(LINT):
	GOBIN=$(dir $(LINT)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

.PHONY: fmt
fmt: $(LINT) ## Format every module
	@set -e; for module in $(MODULES); do (cd $$module && $(LINT) fmt ./...); done

.PHONY: bench
bench: setup ## Measure stores, doors and middleware beside others, and print the tables, in some twenty-five minutes
	cd bench && go run ./memory
	cd bench && go run ./redis
	cd bench && go run ./doors
	cd bench && go run ./http
	cd bench && go run ./resilience

.PHONY: faults
faults: setup ## Break real servers and daemons in every way that docs/reliability.md lists, in some minutes; UPDATE=1 writes its table
	cd faults && go test -count=1 -timeout=30m -faults.full $(if $(UPDATE),-faults.update)

# Any length: make soak SOAK=1h.
SOAK ?= 5m

.PHONY: soak
soak: setup ## Keep a daemon under load for SOAK (5m), with a fault every twenty seconds
	cd faults && go test -count=1 -timeout=0 -run '^TestSoak$$' -faults.soak=$(SOAK)

.PHONY: cover
cover: ## Show how much of the main module its tests cover
	go test -coverpkg=./... -coverprofile=cover.out ./...
	go tool cover -func=cover.out
