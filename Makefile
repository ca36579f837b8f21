# Targets with a ## comment are the ones people use; `make help` lists them.
GO ?= go
TOOLS := e2e/.tools/bin
PACKAGES := ./...

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/tidewaiter
	$(GO) build -o bin/tidewaiter ./cmd/tidewaiter

.PHONY: test
test: ## Run the tests; needs no network beyond Go modules, no root, no Docker
	$(GO) test $(PACKAGES)

.PHONY: race
race: ## Run the tests of our own concurrency under the race detector
	$(GO) test -race ./db/... ./importer/... ./signatures/... ./web/hooks/...

.PHONY: e2e-tools
e2e-tools: ## Build or fetch what the end-to-end tests drive: kubectl, registries, cosign
	$(GO) run -C e2e ./tools

.PHONY: e2e
e2e: e2e-tools ## Drive the built binary with the real kubectl, registries and cosign
	$(GO) test -C e2e -count=1 -timeout 30m ./...

.PHONY: bench
bench: ## Run the Go benchmarks of storage, import and verification
	$(GO) test -run '^$$' -bench . -benchmem $(PACKAGES)

.PHONY: fuzz
fuzz: ## Fuzz every target for 10 s each
	@for f in $$(grep -rl --include='*_test.go' '^func Fuzz' --exclude-dir=e2e .); do \
		for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$f); do \
			$(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime 10s $$(dirname $$f) || exit 1; \
		done; \
	done

.PHONY: generate
generate: ## Regenerate the OpenAPI definitions
	$(GO) generate ./imageapi/...

.PHONY: verify
verify: ## Check formatting, vet, staticcheck, go.mod and generated code
	sh .ci/verify
