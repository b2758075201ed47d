# Targets work from a fresh clone with Go, Python 3 and the package registries. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
TOOLS   := .tools
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# The race detector needs a C compiler; the binary never does.
CC_FOUND := $(shell command -v $(firstword $(shell $(GO) env CC)) 2>/dev/null)
RACE     := $(if $(CC_FOUND),CGO_ENABLED=1,CGO_ENABLED=0)
RACEFLAG := $(if $(CC_FOUND),-race,)

TEST_TIMEOUT ?= 10m
PKG          ?= ./...

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Build and run

.PHONY: build
build: ## Build the static binary bin/sluice
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/sluice ./cmd/sluice

.PHONY: demo
demo: build ## Run Envoy, Sluice and three simulated engines on loopback; KEEP=1 leaves them running, TRACE=1 shows a trace in Jaeger
	@envoy=$$(scripts/envoy.sh); jaeger=; $(if $(TRACE),jaeger=$$(scripts/jaeger.sh);) \
	exec bin/sluice demo --envoy "$$envoy" $${jaeger:+--jaeger "$$jaeger"} $(if $(KEEP),--keep)

.PHONY: envoy
envoy: ## Get the Envoy that the demo and the tests use, and print its path
	@scripts/envoy.sh

.PHONY: grpcurl
grpcurl: $(TOOLS)/bin/grpcurl ## Build grpcurl and print its path
	@echo $(CURDIR)/$<

##### Check

# Where no Envoy can be had for the platform the suites that need one are skipped; on linux/x86_64
# the pinned one always can, so its absence is a failure.
.PHONY: test
test: $(TOOLS)/bin/grpcurl ## Run every test, the real-Envoy suite included, with the race detector
	@$(if $(CC_FOUND),,echo "test: no C compiler found: running without the race detector" >&2;) \
	code=0; envoy=$$(scripts/envoy.sh) || code=$$?; \
	if [ $$code -eq 2 ]; then echo "test: the real-Envoy suite is skipped" >&2; required=; \
	elif [ $$code -ne 0 ]; then exit $$code; else required=1; fi; \
	pyzmq=$$(scripts/pyzmq.sh); duckdb=$$(scripts/duckdb.sh); \
	SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=$$required SLUICE_GRPCURL="$(CURDIR)/$(TOOLS)/bin/grpcurl" \
	SLUICE_PYZMQ="$$pyzmq" SLUICE_PYZMQ_REQUIRED=1 SLUICE_DUCKDB="$$duckdb" SLUICE_DUCKDB_REQUIRED=1 $(RACE) \
	$(GO) test $(RACEFLAG) -shuffle=on -timeout $(TEST_TIMEOUT) $(PKG)

.PHONY: test-norace
test-norace: ## Run the tests that the race detector leaves out: allocations, memory, every cut of an answer
	@scripts/norace.sh -timeout $(TEST_TIMEOUT)

.PHONY: test-all
test-all: ## Run what `test` and `test-norace` run with the long cases, the volumes, the simulation beside the live path, 100,000 inputs to every fuzz target, the page in Chromium, a Kubernetes API server, and the tidiness check
	SLUICE_LONG=1 $(MAKE) test TEST_TIMEOUT=40m
	$(MAKE) test-norace
	$(MAKE) test-sim
	$(MAKE) test-trace
	$(MAKE) test-page
	$(MAKE) test-kube
	$(MAKE) chaos-volume
	$(MAKE) fuzz FUZZTIME=100000x
	$(MAKE) check-tidy

.PHONY: test-trace
test-trace: build ## Read the trace of requests through Envoy, Sluice and simulated engines from a real Jaeger (builds one once: 5 minutes)
	@envoy=$$(scripts/envoy.sh); jaeger=$$(scripts/jaeger.sh); \
	SLUICE_JAEGER="$$jaeger" SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 SLUICE_BINARY="$(CURDIR)/bin/sluice" \
	$(GO) test -count=1 -v -timeout 10m -run 'Trace' ./test/trace ./cmd/sluice/demo

.PHONY: test-sim
test-sim: ## Compare the simulation of two traces with Envoy, Sluice and simulated engines that serve them in real time (1 minute)
	@envoy=$$(scripts/envoy.sh); SLUICE_SIM=1 SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 \
	$(GO) test -count=1 -v -timeout 10m ./test/simulation

.PHONY: test-page
test-page: ## Look at the admin port's page in a headless Chromium, light and dark; screenshots go to bin/page
	@code=0; chromium=$$(scripts/chromium.sh) || code=$$?; \
	if [ $$code -eq 2 ]; then echo "test-page: skipped" >&2; exit 0; elif [ $$code -ne 0 ]; then exit $$code; fi; \
	envoy=$$(scripts/envoy.sh) || code=$$?; \
	if [ $$code -eq 2 ]; then echo "test-page: skipped" >&2; exit 0; elif [ $$code -ne 0 ]; then exit $$code; fi; \
	SLUICE_CHROMIUM="$$chromium" SLUICE_CHROMIUM_REQUIRED=1 SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 \
	$(GO) test -count=1 -timeout 15m ./test/page

.PHONY: test-kube
test-kube: ## Follow pools, pods and Services of a real Kubernetes API server, killed and restarted under traffic through Envoy (builds one once: 3 minutes)
	@kube=$$(scripts/kube.sh); envoy=$$(scripts/envoy.sh); \
	SLUICE_KUBE="$$kube" SLUICE_KUBE_REQUIRED=1 SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 \
	$(GO) test -count=1 -v -timeout 20m ./test/kube/...

.PHONY: test-vllm
test-vllm: build ## Run Envoy and Sluice in front of two real vLLM engines on the CPU (Linux x86_64; fetches 1 GB once)
	@vllm=$$(scripts/vllm.sh); envoy=$$(scripts/envoy.sh); \
	SLUICE_VLLM="$$vllm" SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 SLUICE_BINARY="$(CURDIR)/bin/sluice" \
	$(GO) test -count=1 -v -timeout 40m $(VLLMFLAGS) ./test/vllm

.PHONY: fuzz
fuzz: ## Run every fuzz target for a short while (FUZZTIME each, FUZZBUDGET seconds in all), or FUZZTIME=100000x so many inputs
	@FUZZTIME=$(or $(FUZZTIME),5s) FUZZBUDGET=$(or $(FUZZBUDGET),90) scripts/fuzz.sh

# A run prints its seed; SLUICE_CHAOS_SEED repeats it.
.PHONY: chaos
chaos: ## Run the whole path under faults for CHAOS (10m by default), then the precise index against its model for CHAOS_MODEL (1m)
	@envoy=$$(scripts/envoy.sh); SLUICE_CHAOS=$(or $(CHAOS),10m) SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 $(RACE) \
	$(GO) test $(RACEFLAG) -count=1 -v -run '^TestChaos$$' -timeout 6h ./test/chaos
	@SLUICE_CHAOS=$(or $(CHAOS_MODEL),1m) $(RACE) \
	$(GO) test $(RACEFLAG) -count=1 -run '^TestChaos$$' -timeout 6h ./cache/precise -rapid.checks=1000

.PHONY: chaos-volume
chaos-volume: ## Break a million streams off and publish 4 GiB of KV events: nothing leaks, memory stays below its ceiling
	@SLUICE_LONG=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^(TestAbortedStreams|TestFloodOfEvents)$$' -timeout 2h ./test/chaos

.PHONY: lint
lint: $(TOOLS)/bin/golangci-lint secrets licences observability ## Run golangci-lint, gofmt included, the secrets check, the licence report and the check of alerts and dashboard
	$< run --allow-parallel-runners $(PKG)

.PHONY: secrets
secrets: $(TOOLS)/bin/gitleaks ## Look for secrets in the working tree and in what was committed
	@scripts/secrets.sh $<

.PHONY: licences
licences: $(TOOLS)/bin/licences ## Report the licences of all modules used; fail on one that Apache-2.0 does not take
	@mkdir -p bin
	@$< -o bin/licences.txt ./...

.PHONY: observability
observability: $(TOOLS)/bin/promcheck ## Check the alert rules, with their unit tests, and the dashboard, each expression against the metrics that there are
	@$< -metrics docs/metrics.md -rules deploy/prometheus/rules.yaml -tests deploy/prometheus/rules_test.yaml \
	-alerts docs/alerts.md -dashboard deploy/grafana/sluice.json

.PHONY: vuln
vuln: $(TOOLS)/bin/govulncheck ## Look for known vulnerabilities; says so where the database cannot be reached
	@scripts/vuln.sh $<

.PHONY: format
format: $(TOOLS)/bin/golangci-lint ## Format the Go code
	$< fmt

.PHONY: buf-lint
buf-lint: $(TOOLS)/bin/buf ## Lint the protobuf files
	$< lint
	$< format --diff --exit-code

.PHONY: buf-breaking
buf-breaking: $(TOOLS)/bin/buf ## Fail if the protobuf files break who was built on api/published.binpb, which a release renews
	$< breaking --against api/published.binpb

.PHONY: buf-publish
buf-publish: $(TOOLS)/bin/buf ## Take the protobuf files as they are for the published ones
	$< build -o api/published.binpb

.PHONY: generate
generate: $(TOOLS)/bin/buf $(TOOLS)/bin/protoc-gen-go $(TOOLS)/bin/protoc-gen-go-grpc ## Generate Go from the protobuf files, the configuration reference and the tokenizer's merges
	$< generate
	$(GO) generate ./...

.PHONY: check-generated
check-generated: $(TOOLS)/bin/buf $(TOOLS)/bin/protoc-gen-go $(TOOLS)/bin/protoc-gen-go-grpc ## Fail if the generated code is not fresh
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$< generate --output "$$fresh"; \
	committed() { (cd api && find . -name '*.pb.go' | sort); }; made() { (cd "$$fresh/api" && find . -name '*.pb.go' | sort); }; \
	diff <(committed) <(made) || { echo "check-generated: the set of generated files differs: run make generate" >&2; exit 1; }; \
	for file in $$(made); do diff -u "api/$$file" "$$fresh/api/$$file" || \
	{ echo "check-generated: api/$${file#./} is not fresh: run make generate" >&2; exit 1; }; done

.PHONY: check-tidy
check-tidy: ## Fail if go.mod or go.sum is not tidy
	$(GO) mod tidy -diff

##### Measure

# What cannot be had here (an Envoy, the routers) is left out, and the run says so. It tells them by a path's absence.
.PHONY: bench
bench: build ## Measure Sluice beside a null server, through Envoy, and whole routers (15 minutes; BENCHFLAGS=-h)
	@case " $(BENCHFLAGS) " in *" -h "* | *" -help "* | *" --help "*) exec $(GO) run ./bench -h;; esac; \
	envoy=$$(scripts/envoy.sh) || envoy=; routers=$$(scripts/routers.sh) || routers=; \
	exec $(GO) run ./bench -sluice bin/sluice -envoy "$$envoy" -routers "$$routers" $(BENCHFLAGS)

.PHONY: bench-allocs
bench-allocs: ## Compare the allocations of a request with the results of record
	$(GO) test -count=1 -v -run '^TestAllocationsOfRecord$$' ./bench

.PHONY: bench-go
bench-go: ## Run the Go benchmarks
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m $(PKG)

.PHONY: bench-index
bench-index: ## Measure the precise prefix index: look-ups, events, memory, one line a row
	$(GO) run ./bench/index $(BENCHFLAGS)

# TRACES is a folder with the public traces that bench/grids names; without it synthetic workloads stand alone. Samples over sockets
# are taken first, for a minute; without an Envoy they are left out.
.PHONY: bench-latency
bench-latency: ## Measure how well latency is predicted, beside XGBoost on the same samples, a line a data set (TRACES=folder, BENCHFLAGS=-h; 10 minutes)
	@case " $(BENCHFLAGS) " in *" -h "* | *" -help "* | *" --help "*) exec $(GO) run ./bench/latency -h;; esac; \
	xgboost=$$(scripts/xgboost.sh); sockets="$(CURDIR)/bin/latency/taken.ndjson"; \
	SLUICE_XGBOOST="$$xgboost" SLUICE_XGBOOST_REQUIRED=1 $(GO) test -count=1 ./bench/latency/... >&2; \
	if [[ "$(BENCHFLAGS)" == *-sets* && "$(BENCHFLAGS)" != *sockets* ]]; then sockets=; \
	elif envoy=$$(scripts/envoy.sh); then \
	SLUICE_LATENCY_SAMPLES="$$sockets" SLUICE_ENVOY="$$envoy" SLUICE_ENVOY_REQUIRED=1 \
	$(GO) test -count=1 -timeout 10m -run '^TestLatencySamples$$' ./test/simulation >&2; \
	else sockets=; fi; \
	exec $(GO) run ./bench/latency -traces "$(TRACES)" -python "$$xgboost" -sockets "$$sockets" $(BENCHFLAGS)

##### Tools, pinned in tools/

$(TOOLS)/bin/golangci-lint: tools/go.mod tools/go.sum
	@mkdir -p $(@D)
	$(GO) build -C tools -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLS)/bin/protoc-gen-go: tools/proto/go.mod tools/proto/go.sum
	@mkdir -p $(@D)
	$(GO) build -C tools/proto -o $(CURDIR)/$@ google.golang.org/protobuf/cmd/protoc-gen-go

$(TOOLS)/bin/protoc-gen-go-grpc: tools/proto/go.mod tools/proto/go.sum
	@mkdir -p $(@D)
	$(GO) build -C tools/proto -o $(CURDIR)/$@ google.golang.org/grpc/cmd/protoc-gen-go-grpc

$(TOOLS)/bin/grpcurl: tools/proto/go.mod tools/proto/go.sum
	@mkdir -p $(@D)
	$(GO) build -C tools/proto -o $(CURDIR)/$@ github.com/fullstorydev/grpcurl/cmd/grpcurl

$(TOOLS)/bin/gitleaks: tools/gitleaks/go.mod tools/gitleaks/go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -C tools/gitleaks -o $(CURDIR)/$@ github.com/zricethezav/gitleaks/v8

# Built once its own tests pass: it is the check.
$(TOOLS)/bin/licences: tools/licences/go.mod tools/licences/go.sum $(wildcard tools/licences/*.go)
	@mkdir -p $(@D)
	$(GO) test -C tools/licences .
	CGO_ENABLED=0 $(GO) build -C tools/licences -o $(CURDIR)/$@ .

# Built once its own tests pass, as above.
$(TOOLS)/bin/promcheck: tools/prometheus/go.mod tools/prometheus/go.sum $(wildcard tools/prometheus/*.go)
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) test -C tools/prometheus .
	CGO_ENABLED=0 $(GO) build -C tools/prometheus -o $(CURDIR)/$@ .

$(TOOLS)/bin/govulncheck: tools/vuln/go.mod tools/vuln/go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 $(GO) build -C tools/vuln -o $(CURDIR)/$@ golang.org/x/vuln/cmd/govulncheck

$(TOOLS)/bin/buf: tools/buf.txt
	@mkdir -p $(@D)
	scripts/wheel.sh $< $(TOOLS)/buf
	install -m 755 $(TOOLS)/buf/bin/buf $@

.PHONY: clean
clean: ## Remove what was built and fetched
	rm -rf bin .tools
