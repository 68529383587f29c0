# Everything here needs Go and make. `make test` installs what else it needs.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

# Every directory with a go.mod is a module; the root is one of them. A
# workspace file must not hide what a module lacks.
MODULES := $(sort $(dir $(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*')))
NESTED  := $(filter-out ./ ./server/envoy/ratelimit/peertest/,$(MODULES)) # that one needs a checkout: make peer
export GOWORK := off
# Everything is compiled as releases are, so that nothing is compiled twice; only the race detector needs cgo.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip $(GOFLAGS) -trimpath)

# The newest golangci-lint that the module proxy serves with all it depends on.
LINT_VERSION := v2.14.0
LINT         := $(CURDIR)/.bin/$(LINT_VERSION)/golangci-lint

# The timeout detects a hang, and the stacks say where. Packages wait for servers
# more than they compute, so more of them run than there are processors.
TEST_FLAGS := -shuffle=on -timeout=20m -p 4
# The tests of a package wait as well. Vet is a target of its own.
MAIN_FLAGS := $(TEST_FLAGS) -parallel 4 -vet=off
# The compiler takes a quarter less time if it collects garbage less often. Tests must not:
# some measure the heap.
GO_TEST    := GOGC=400 go test -exec 'env -u GOGC'
# The race detector sleeps for a second at the end of each process; the tests start hundreds.
# Without what only a debugger reads, the fifty programs are linked in two thirds of the time.
# Translated C and generated builders of commands are not ours to find races in: SQLite is ten times
# slower with the detector, and the builders compile in half the time without it and optimization.
# All this is in the environment for the programs that tests build: nothing is compiled a second time.
RACE_FLAGS := -race -ldflags=-w -gcflags=modernc.org/...=-race=false '-gcflags=github.com/redis/rueidis/internal/cmds=-race=false -N -l'
RACE_TEST  := CGO_ENABLED=1 GORACE=atexit_sleep_ms=20 GOFLAGS="$$GOFLAGS $(RACE_FLAGS)" $(GO_TEST)
SUMMARY    := .bin/summary
REPORT     := go run ./internal/testreport -summary $(SUMMARY)

# Nothing in these is concurrent, so that the race detector has nothing to find.
SEQUENTIAL := $(addprefix internal/,address algorithm algorithm/algorithmtest defaults doctest fixedseed hashtable monotime sentinelrules \
	setassoc siphash slab spelling testreport timespan treetest yamlerror) \
	server/accesslog server/internal/auth server/replay server/simulator
RACY        = $(filter-out $(addprefix %/,$(SEQUENTIAL)),$(shell go list $(SLOW) ./...))

# These and the data structures have properties that are worth trying more often than the
# race detector allows. CI does so for all packages (make unit), the simulation included.
PURE = $(filter-out %/internal/simulation,$(shell go list ./internal/... $(addprefix ./,$(SEQUENTIAL))))

# Some tests of these compute for long in one goroutine, or start hundreds of processes, and take up to
# ten times as long with the race detector. It leaves them out (//go:build !race), and they run here.
COMPUTING := ./cmd/penstock ./overload ./rules

# These start first, because nothing else is left to run beside the last one.
SLOW := ./redisstore ./faults ./server . ./server/respapi ./internal/simulation ./rules

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Start here

.PHONY: run
run: build ## Start the daemon and print commands to try; ARGS="--http :9090" adds flags
	@.bin/penstock serve --print-examples --rules examples/rules.yaml $(ARGS)

.PHONY: test
test: setup format-check ## Run the tests of the main module, race detector on where there is concurrency: about six minutes, longer the first time
	@mkdir -p .bin && rm -f $(SUMMARY)
	@$(RACE_TEST) $(MAIN_FLAGS) -short -json $(RACY) | $(REPORT) -title "all packages with concurrency, race detector on"
	@$(GO_TEST) $(MAIN_FLAGS) -json $(PURE) | $(REPORT) -title "documents, arithmetic and data structures, full-length properties"
	@$(GO_TEST) $(MAIN_FLAGS) -short -json $(COMPUTING) | $(REPORT) -title "simulations, parsers and scripts of the command, without the race detector"
	@echo; echo "make test:"; cat $(SUMMARY)

.PHONY: build
build: ## Build the command and daemon into .bin/penstock
	go build -o .bin/penstock ./cmd/penstock

.PHONY: simulate
simulate: ## Draw what a limit does to traffic; LIMIT="5/2s sliding-log" TRAFFIC=burst shows another
	@go run ./cmd/penstock simulate "$(or $(LIMIT),10/1s)" --traffic "$(or $(TRAFFIC),edge)"

##@ More tests (CI runs these too)

.PHONY: unit
unit: setup ## Run all tests without the race detector, allocation tests included
	@mkdir -p .bin
	@$(GO_TEST) $(MAIN_FLAGS) -json ./... | $(REPORT) -title "all packages"

.PHONY: nested
nested: setup ## Vet and test the nested modules: benchmarks, adapters, manifests, envoyproxy/ratelimit, framework examples
	@set -e; for module in $(NESTED); do \
		echo "module $$module"; \
		(cd $$module && go vet ./... && go test -short $(TEST_FLAGS) ./...); \
	done

.PHONY: servers
servers: setup ## Run the store's conformance on other servers, SERVERS="redis-6.0 valkey-9" or all, and behind all proxies
	@.ci/servers $(SERVERS)

.PHONY: integration
integration: setup-integration page ## Run the tests that need nginx, Caddy, HAProxy, Node, Python, promtool, PostgreSQL, MariaDB and a browser
	@mkdir -p .bin
	@go test $(TEST_FLAGS) -tags integration -run Integration -json $(INTEGRATION) | $(REPORT) -title integration

.PHONY: page
page: setup setup-page ## Open the page of real daemons in a browser; UPDATE=1 renews the screenshots
	cd server/page/pagetest && go test -count=1 -timeout=15m -shuffle=on $(if $(UPDATE),-page.update) ./...

# The packages that have tests behind the build tag.
INTEGRATION = $(sort $(dir $(shell grep -rl --include='*_test.go' '^//go:build integration' .)))

.PHONY: lint
lint: $(LINT) vet ## Run golangci-lint and go vet on every module
	@set -e; for module in $(MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(LINT) run ./...); \
	done

.PHONY: vet
vet: format-check ## Run go vet, for 32 bits and with the integration tests too
	go vet ./...
	go vet -tags integration ./...
	GOOS=linux GOARCH=386 go vet ./...

.PHONY: format-check
format-check:
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; fi

##@ Long runs

FUZZTIME ?= 30s

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@set -e; \
	targets=$$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's|/[^/]*:func |:|'); \
	if [ -z "$$targets" ]; then echo "no fuzz targets found" >&2; exit 1; fi; \
	for target in $$targets; do \
		echo "fuzz $$target"; \
		(cd $${target%:*} && go test -run '^$$' -fuzz "^$${target##*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime=1x .); \
	done

.PHONY: properties
properties: setup ## Try every property with CHECKS (1000) new random cases
	PENSTOCK_SEED=0 go test -count=1 -timeout=0 -short $$(grep -rl --include='*_test.go' '"pgregory.net/rapid"' . | xargs -n1 dirname | sort -u) \
		-rapid.checks=$(or $(CHECKS),1000)

.PHONY: faults
faults: setup ## Break real servers and daemons as docs/reliability.md lists; UPDATE=1 writes its table
	cd faults && go test -count=1 -timeout=30m -faults.full $(if $(UPDATE),-faults.update)
	go test ./server -count=1 -timeout=30m -run '^TestAttack' -attack.requests=1000000
	go test ./server/envoy/rls -count=1 -timeout=30m -run '^TestCompatAnswers' -peer.requests=100000

.PHONY: peer
peer: setup ## Compare answers and counters with envoyproxy/ratelimit, of which PEER is a checkout
	cd server/envoy/ratelimit/peertest && go test -count=1 -timeout=30m -peer.dir=$(abspath $(PEER))

SOAK ?= 5m

.PHONY: soak
soak: setup ## Keep a daemon under load for SOAK (5m), with a fault every twenty seconds
	cd faults && go test -count=1 -timeout=0 -run '^TestFaults$$/^soak$$' -faults.soak=$(SOAK)

.PHONY: soak-sql
soak-sql: setup-integration ## Keep a table of PostgreSQL under load for SOAK (5m), and print its size
	go test ./sqlstore -count=1 -timeout=0 -tags integration -run '^TestIntegrationPostgresSoak$$' -v -sqlstore.soak=$(SOAK)

WORLDS ?= 1000

.PHONY: worlds
worlds: ## Simulate WORLDS (1000) random worlds of regions that fail, from seed SEED (1)
	go test ./regions -count=1 -timeout=0 -run '^TestWorldsKeepTheBound$$' -v -regions.worlds=$(WORLDS) -regions.seed=$(or $(SEED),1)

.PHONY: bench
bench: setup ## Measure penstock beside other limiters and print the tables, in about an hour
	@$(MAKE) --no-print-directory programs PROGRAMS="$(DATABASES)"
	cd bench && for part in memory redis sql daemon engine replay http resilience overload; do go run ./$$part || exit 1; done

# MEASURE=1 leaves out overload-real.csv: real servers need a quiet machine and an hour, see bench/results/overload.md.
.PHONY: plots
plots: ## Draw docs/images from bench/results; MEASURE=1 measures anew first
	cd bench $(if $(MEASURE),&& go run ./memory -series results/keys.csv && go run ./resilience -run outage -csv results/outage.csv && go run ./overload -run offered -csv results/overload.csv && cd .. && go test ./regions -run TestSeries -regions.series ../bench/results/regions.csv && cd bench) && go run ./plots

.PHONY: cover
cover: setup ## Show the test coverage of the main module
	mkdir -p .bin
	go test -coverpkg=./... -coverprofile=.bin/cover.out ./...
	go tool cover -func=.bin/cover.out

.PHONY: size
size: ## Count the product's lines, and where it asks for a request's algorithm or options
	@.ci/size

##@ Releases

PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# A release has a tag for each module on one commit: of these, the one without a path.
VERSION   ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty)
RELEASE   := .bin/release

# Archives are the same whenever they are built: sorted, and as old as the commit.
ARCHIVE = tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$$(git log -1 --format=%ct) --create

.PHONY: release
release: ## Build static archives for PLATFORMS into .bin/release, with SHA256SUMS
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	@set -e; for platform in $(PLATFORMS); do \
		name=penstock-$(VERSION)-$${platform/\//-}; echo "$$name.tar.gz"; mkdir $(RELEASE)/$$name; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -ldflags="-s -w" -o $(RELEASE)/$$name/penstock ./cmd/penstock; \
		cp LICENSE README.md CHANGELOG.md $(RELEASE)/$$name; \
		$(ARCHIVE) --directory $(RELEASE) $$name | gzip -9n > $(RELEASE)/$$name.tar.gz; \
		rm -r $(RELEASE)/$$name; \
	done
	@cd $(RELEASE) && sha256sum *.tar.gz > SHA256SUMS

##@ Tools

.PHONY: fmt
fmt: $(LINT) ## Format every module
	@set -e; for module in $(MODULES); do (cd $$module && $(LINT) fmt ./...); done

$(LINT):
	GOBIN=$(dir $(LINT)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

# The programs that tests run, and the Debian packages that bring them.
TEST_PROGRAMS        := redis-server:redis-server redis-benchmark:redis-tools curl:curl
DATABASES            := mariadbd:mariadb-server pg_ctlcluster:postgresql pgbouncer:pgbouncer
INTEGRATION_PROGRAMS := $(TEST_PROGRAMS) nginx:nginx-light caddy:caddy haproxy:haproxy node:nodejs npm:npm python3:python3 mypy:mypy promtool:prometheus etcd:etcd-server $(DATABASES)

.PHONY: setup
setup: ## Install what make test needs and this machine lacks
	@$(RACE_TEST) -run '^$$' errors >/dev/null || $(MAKE) --no-print-directory install PACKAGES="gcc libc6-dev"
	@$(MAKE) --no-print-directory programs PROGRAMS="$(TEST_PROGRAMS)"

.PHONY: setup-integration
setup-integration: ## Install what make integration needs and this machine lacks
	@$(MAKE) --no-print-directory programs PROGRAMS="$(INTEGRATION_PROGRAMS)"
	@test -e /usr/lib/nginx/modules/ngx_http_lua_module.so || $(MAKE) --no-print-directory install PACKAGES=libnginx-mod-http-lua
	@for python in python3 /usr/bin/python3; do $$python -c "import starlette, uvicorn" 2>/dev/null && exit 0; done; \
	$(MAKE) --no-print-directory install PACKAGES="python3-starlette python3-uvicorn"
	@$(MAKE) --no-print-directory $(TYPESCRIPT)
	@command -v consul >/dev/null || $(MAKE) --no-print-directory $(CONSUL)

# Debian 12 has no package of it, so it is that of Debian 11, which needs nothing to be installed.
CONSUL_PACKAGE := consul_1.8.7+dfsg1-2+b3_amd64.deb
CONSUL_SHA256  := e4e888bba104daba1d9161f49bfc52649a7e4efd45b1a7ead5bc54f2cb9c89d9
CONSUL         := .bin/consul/usr/bin/consul

$(CONSUL):
	@mkdir -p .bin/consul
	curl --silent --show-error --fail --retry 5 -o .bin/consul/package.deb http://deb.debian.org/debian/pool/main/c/consul/$(CONSUL_PACKAGE)
	echo "$(CONSUL_SHA256)  .bin/consul/package.deb" | sha256sum --check --quiet
	dpkg-deb --extract .bin/consul/package.deb .bin/consul

# It checks the declarations of clients/typescript; to run that, nothing is built.
TYPESCRIPT_VERSION := 5.9.3
TYPESCRIPT         := .bin/typescript/$(TYPESCRIPT_VERSION)

$(TYPESCRIPT):
	npm install --prefix .bin/typescript --no-audit --no-fund --ignore-scripts --fetch-retries=5 typescript@$(TYPESCRIPT_VERSION)
	touch $@

# Any browser of this family will do; Debian's smallest has no window.
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome

.PHONY: setup-page
setup-page:
	@for program in $(BROWSERS); do command -v $$program >/dev/null && exit 0; done; \
	$(MAKE) --no-print-directory install PACKAGES=chromium-headless-shell
	@$(if $(UPDATE),fc-list :lang=zh 2>/dev/null | grep --quiet . || $(MAKE) --no-print-directory install PACKAGES="fontconfig fonts-wqy-microhei")

.PHONY: programs
programs:
	@missing=; for program in $(PROGRAMS); do \
		command -v $${program%:*} >/dev/null || missing="$$missing $${program#*:}"; \
	done; \
	if [ -n "$$missing" ]; then $(MAKE) --no-print-directory install PACKAGES="$$missing"; fi

# It waits for a process that has its lock, and asks again for what a mirror does not send. An
# update does not wait for the lock, so it is repeated.
APT := DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5

.PHONY: install
install:
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "these Debian packages are needed: $(PACKAGES); install them or what brings the same programs, then run make again" >&2; \
		exit 1; \
	fi
	for try in 1 2 3 4 5 6; do $(APT) update && break; sleep 10; done
	$(APT) install -y --no-install-recommends $(PACKAGES)
