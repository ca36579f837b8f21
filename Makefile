# Targets with a ## comment are the ones people use; `make help` lists them.
GO ?= go
TOOLS := e2e/.tools/bin
PACKAGES := ./... ./.ci/links ./.ci/rooms
FUZZTIME ?= 20s
TESTFLAGS ?=
# The tests of whole servers wait for most of their time.
PARALLEL ?= 8
# What releases are called and dated; a commit without a tag is none.
export VERSION ?= $(shell git describe --tags --dirty --match 'v*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.0.0-dev.`git rev-parse --short=12 HEAD`)
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
ARCH ?= $(shell $(GO) env GOARCH)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/tidewaiter
	$(GO) build -o bin/tidewaiter ./cmd/tidewaiter

.PHONY: image
image: ## Make the container image bin/image, an OCI layout, for ARCH (this machine's)
	sh deploy/static $(ARCH) bin/linux-$(ARCH)/tidewaiter
	$(GO) run ./deploy/image -version "$(VERSION)" -revision "$$(git rev-parse HEAD)" -layout bin/image bin/linux-$(ARCH)/tidewaiter

.PHONY: release
release: ## Make bin/release: static programs for Linux on amd64 and arm64, with checksums
	sh deploy/release amd64 arm64

.PHONY: publish
publish: ## Push the image and the chart of a release to REGISTRY, signed by cosign with COSIGN_KEY
	@test -n "$(REGISTRY)" || { echo 'usage: make publish REGISTRY=ghcr.io/tidewaiter COSIGN_KEY=cosign.key'; exit 2; }
	sh deploy/publish "$(REGISTRY)"

.PHONY: reproduce
reproduce: ## Make the release again from a clone, with an empty cache, and compare it byte by byte
	sh deploy/reproduce amd64 arm64

CLIENTS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: clients
clients: ## Make bin/clients: the verbs that ask a server, without C, for Linux, macOS and Windows, with checksums
	sh deploy/clients $(CLIENTS)

.PHONY: test
test: ## Run the tests; needs no network beyond Go modules, no root, no Docker
	$(GO) test -parallel $(PARALLEL) -timeout 60m $(TESTFLAGS) $(PACKAGES)

# Folders in which something runs beside something else. In the others the race detector has nothing to find.
CONCURRENT = $(patsubst %,./%,$(sort $(dir $(shell git grep -lE '^\s*go [a-zA-Z]|\.Go\b|\b(sync|atomic|synctest|httptest|errgroup|singleflight)\.' -- '*.go' ':!e2e'))))

# A program with the race detector sleeps for a second before it exits, for goroutines that still run. What tests leave behind
# is not what they test.
.PHONY: race
race: export GORACE := atexit_sleep_ms=0 $(GORACE)
race: ## Run the tests in which something runs side by side under the race detector, but for those that kill processes
	$(GO) test -race -short -parallel $(PARALLEL) -timeout 60m $(TESTFLAGS) $(if $(filter file,$(origin PACKAGES)),$(CONCURRENT),$(PACKAGES))

.PHONY: e2e-tools
e2e-tools: ## Build or fetch what the end-to-end tests drive: kubectl, registries, cosign
	$(GO) run -C e2e ./tools

# Most of these tests wait for processes that they started, so more of them run at a time than there are processors.
.PHONY: e2e
e2e: e2e-tools ## Drive the built binary with the real kubectl, registries and cosign
	$(GO) test -C e2e -count=1 -parallel 6 -timeout 30m $(TESTFLAGS) ./...
	$(GO) test -C e2e/differential -tags containers_image_openpgp -count=1 -timeout 30m $(TESTFLAGS) ./...

.PHONY: console-pictures
console-pictures: ## Take the pictures of README.md and docs/console.md anew; needs chromium
	$(GO) run -C e2e ./tools kubectl crane
	$(GO) test -C e2e -run '^TestPictures$$' -count=1 . -pictures $(CURDIR)/docs/pictures

.PHONY: console-tour
console-tour: ## Take pictures of every page of the console into bin/tour: 360, 1280 and 1920 pixels wide, light and dark, empty and full; needs chromium
	$(GO) run -C e2e ./tools kubectl crane
	$(GO) test -C e2e -run '^TestConsoleTour$$' -count=1 . -tour $(CURDIR)/bin/tour

.PHONY: e2e-image
e2e-image: ## Make the container image and a release, run and import them; the first time everything is compiled anew, some minutes
	$(GO) run -C e2e ./tools kubectl registry helm cosign validate-krew-manifest
	$(GO) test -C e2e -tags imagetest -run '^(TestImage|TestRelease|TestPublish|TestClient)$$' -count=1 -timeout 30m $(TESTFLAGS) .

.PHONY: nightly
nightly: FUZZTIME = 2m
nightly: ## Run what takes hours: every question at every door, Kubernetes' specs, KWOK, kine, osv-scanner, sigstore's services, Gitea, an hour of faults, the other architecture, fuzzing
	$(GO) test ./cmd/tidewaiter -run '^(TestOneQuestionHasOneAnswer|TestBothSidesHaveOneAnswer|TestFloods|TestStoredReadsAnswerAsDecodedOnes)$$' -count=1 -timeout 3h -v -exhaustive -worlds "1,2,3,4,$$(date +%s)"
	$(GO) run -C e2e ./tools
	$(GO) run -C e2e ./tools e2e.test kwok kine osv-scanner fulcio ct_server gitea
	$(GO) test -C e2e/differential -tags nightly -count=1 -v ./advisories
	$(GO) test -C e2e -tags nightly -run '^(TestConformance|TestPodsOfClusters|TestKine|TestKineWhilePostgresFails)$$' -count=1 -timeout 60m -v .
	$(GO) test -C e2e -tags nightly -run '^TestStores$$' -count=1 -timeout 2h -v ./compare -store-objects 100000 -patience 10m
	$(GO) test -C e2e -tags nightly -run '^(TestKeyless|TestGitea)$$' -count=1 -timeout 60m -v .
	$(GO) test -C e2e -run '^TestReplicasUnderFaults$$' -count=1 -timeout 2h -v . -replicas-killed-for 60m -replicas-images 20000 -patience 10m
	sh .ci/cross
	$(GO) test -C e2e -tags 'imagetest nightly' -run '^TestOtherArchitecture$$' -count=1 -timeout 60m -v .
	bash .ci/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## Run the Go benchmarks of storage, import and verification
	$(GO) test -run '^$$' -bench . -benchmem $(PACKAGES)

.PHONY: bench-import
bench-import: ## Measure imports of many images beside a plain load generator and crane
	$(GO) test ./cmd/tidewaiter -run '^$$' -bench Bulk -benchtime 1x -timeout 30m -v

.PHONY: bench-compare
bench-compare: ## Measure commit BASE and this tree in turn, a limit and kube-apiserver beside; flags in COMPARE
	@test -n "$(BASE)" || { echo 'usage: make bench-compare BASE=<commit> [COMPARE="-rounds 5 -objects 3000"]'; exit 2; }
	$(GO) run -C e2e ./tools kubectl etcd kube-apiserver
	$(GO) test -C e2e ./compare -run '^TestCompare$$' -count=1 -timeout 5h -v -base "$(BASE)" $(COMPARE)

.PHONY: bench-replicas
bench-replicas: ## Measure three servers over three members of etcd beside one over SQLite and three kube-apiservers; flags in COMPARE
	$(GO) run -C e2e ./tools kubectl etcd kube-apiserver
	$(GO) test -C e2e ./compare -run '^TestReplicas$$' -count=1 -timeout 5h -v -replicas $(COMPARE)

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME each (20s), two at a time
	bash .ci/fuzz $(FUZZTIME)

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is called; needs the network
	bash .ci/vuln

.PHONY: generate
generate: ## Regenerate the OpenAPI definitions, the readers of plain JSON and the copying of objects
	$(GO) generate ./imageapi/... ./signatures/... ./coreapi/... ./internal/...

.PHONY: verify
verify: ## Check formatting, vet, staticcheck, go.mod and generated code
	sh .ci/verify
