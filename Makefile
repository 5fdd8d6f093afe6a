# Everything a contributor needs. CI runs `make test`.

GO          ?= go
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT  := $(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The kube-proxy that this one stands for. Set it to the cluster's version, so that kubernetes-mixin's
# KubeVersionMismatch does not fire: package version says more.
KUBE_VERSION ?= $(shell $(GO) list -m -f '{{.Version}}' k8s.io/kube-proxy | sed 's/^v0\./v1./')
KUBE         := $(KUBE_VERSION)
KUBE_INFO    := k8s.io/component-base/version
LDFLAGS      := -s -w -X github.com/nftproxy/nftproxy/internal/version.own=$(VERSION) -X $(KUBE_INFO).gitVersion=$(KUBE)+nftproxy-$(VERSION) \
	-X $(KUBE_INFO).gitMajor=$(patsubst v%,%,$(word 1,$(subst ., ,$(KUBE)))) -X $(KUBE_INFO).gitMinor=$(word 2,$(subst ., ,$(KUBE)))
# A number of runs, not a time: at a deadline go test now and then reports "context deadline
# exceeded" for a fuzz target that found nothing. `make fuzz FUZZTIME=500000x` for a long one.
FUZZTIME    ?= 5000x
BIN         ?= bin
# Without grpcnotrace gRPC brings in html/template, for which the linker keeps every method: 5 MB more.
# Without -buildvcs=false the bytes depend on the tags of the clone, and on GOFLAGS. The version is in LDFLAGS.
BUILDFLAGS  := -tags grpcnotrace -trimpath -buildvcs=false
# Most tests wait more than they compute.
PARALLEL     = -p $(shell echo $$((2 * $$(nproc))))
# go vet has run before. A slow machine needs more than the 10 minutes that a package has by default.
TEST         = $(GO) test -vet=off -timeout 25m $(PARALLEL)
BUILD       := CGO_ENABLED=0 $(GO) build $(BUILDFLAGS) -ldflags '$(LDFLAGS)'
COMMANDS    := ./cmd/kube-proxy ./cmd/ruledump
# The plugin for kubectl. It has client-go's exec and runs on laptops, so it is a program of its own.
PLUGIN      := ./cmd/kubectl-nftproxy
PLATFORMS   := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
PROXYTEST   ?= localhost/nftproxy/proxytest
IMAGE       ?= localhost/nftproxy/kube-proxy
# The commit, a label of the image.
REVISION    ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# When the image was made, in seconds since 1970, for those who look at it: the time of the commit,
# so that the same source gives the same bytes. 0 is no time.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: api build image release site sbom demo test check check-api unit modules fuzz golden generate bench plot soak test-32 test-arch test-skew test-kernels vulnerabilities clean

build: announce ## static binaries in bin/
	$(BUILD) $(if $(filter true,$(FIRST_BUILD)),-v) -o $(BIN)/ $(COMMANDS) $(PLUGIN)

.PHONY: plugin
plugin: ## bin/_plugin/OS/ARCH, the plugin for kubectl for all of PLATFORMS, with its bill of materials
	@set -e; for platform in $(PLATFORMS); do \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(BUILD) -o $(BIN)/_plugin/$$platform/ $(PLUGIN); \
		$(MAKE) --no-print-directory sbom PROGRAMS=$(BIN)/_plugin/$$platform LISTED="$$(cd $(BIN)/_plugin/$$platform && ls kubectl-nftproxy*)"; \
	done

ARCHITECTURES ?= amd64 arm64
image: $(addprefix programs-for-,$(ARCHITECTURES)) ## bin/image.tar and bin/proxytest.tar, container images for amd64 and arm64 (or ARCHITECTURES=amd64); needs no container daemon
	cd tools && $(GO) run ./image -architectures '$(ARCHITECTURES)' -name $(IMAGE) -version $(VERSION) -revision $(REVISION) -created $(SOURCE_DATE_EPOCH) -binaries $(abspath $(BIN))/linux -o $(abspath $(BIN))/image.tar
	cd tools && $(GO) run ./image -architectures '$(ARCHITECTURES)' -programs proxytest -name $(PROXYTEST) -version $(VERSION) -revision $(REVISION) -created $(SOURCE_DATE_EPOCH) -binaries $(abspath $(BIN))/_proxytest -o $(abspath $(BIN))/proxytest.tar

programs-for-%:
	GOOS=linux GOARCH=$* $(BUILD) -o $(BIN)/linux/$*/ $(COMMANDS)
	$(MAKE) sbom PROGRAMS=$(BIN)/linux/$*
	GOOS=linux GOARCH=$* $(BUILD) -o $(BIN)/_proxytest/$*/ ./cmd/proxytest
	$(MAKE) sbom PROGRAMS=$(BIN)/_proxytest/$* LISTED=proxytest

release: ## VERSION=v0.1.0: bin/release/v0.1.0, all files of a release; the same commit gives the same bytes
	@[ "$(origin VERSION)" = "command line" ] || { echo "usage: make release VERSION=v0.1.0" >&2; exit 2; }
	$(MAKE) image plugin
	rm -rf $(BIN)/release/$(VERSION)
	cd tools && $(GO) run ./release -version $(VERSION) -created $(SOURCE_DATE_EPOCH) -binaries $(abspath $(BIN))/linux -plugins $(abspath $(BIN))/_plugin -image $(abspath $(BIN))/image.tar -name $(IMAGE) -proxytest $(abspath $(BIN))/_proxytest -proxytest-image $(abspath $(BIN))/proxytest.tar -root .. -o $(abspath $(BIN))/release/$(VERSION)

site: ## bin/site, the pages of docs/ with search; needs mkdocs and mkdocs-material (apt-get), fails on a broken link
	mkdocs build --strict --quiet -f tools/site/mkdocs.yml -d $(abspath $(BIN))/site

PROGRAMS ?= $(BIN)
LISTED   ?= kube-proxy ruledump
sbom: ## PROGRAMS/sbom.cdx.json, the modules that are linked into the programs there
	cd tools && $(GO) run ./sbom -version $(VERSION) -created $(SOURCE_DATE_EPOCH) -o $(abspath $(PROGRAMS))/sbom.cdx.json $(addprefix $(abspath $(PROGRAMS))/,$(LISTED))

# The version of Kubernetes' own programs, which kubernetes/go.mod names, and where they are.
KUBERNETES_VERSION = $(shell sed -n 's,^.*k8s.io/kubernetes \(v[^ ]*\).*,\1,p' kubernetes/go.mod)
KUBERNETES = $(BIN)/kubernetes/$(KUBERNETES_VERSION)
.PHONY: kubernetes
kubernetes: ## Kubernetes' own programs that bin/kubernetes/VERSION lacks; 20 minutes the first time; `make kubernetes/kube-proxy` for one
	$(GO) run ./hack/kubernetes -go $(GO) -o $(BIN)/kubernetes

kubernetes/%:
	$(GO) run ./hack/kubernetes -go $(GO) -o $(BIN)/kubernetes $*

demo: build ## the main job, in network namespaces that it makes and removes; with KEEP=1 they and the proxy stay until Ctrl-C
	$(BUILD) -o $(BIN)/demo ./hack/demo
	$(BIN)/demo $(if $(KEEP),-keep)

.PHONY: demo-direct-return
demo-direct-return: build ## connections outlive nodes, in network namespaces that it makes and removes; needs root and bird
	@command -v bird >/dev/null || { echo "bird is missing (apt-get install bird2)" >&2; exit 1; }
	$(GO) test -c -o $(BIN)/direct-return.test ./integration/directreturn
	NFTPROXY_BINARIES=$(abspath $(BIN)) $(BIN)/direct-return.test -test.run '^TestDirectReturn$$/^over_one_segment$$' -demo

.PHONY: record
record: build ## docs/demo.svg: a run of the demo, recorded
	$(BUILD) -o $(BIN)/demo ./hack/demo
	$(BIN)/demo -record docs/demo.svg

.PHONY: proxytest mutations matrix
proxytest: build ## the golden cases over bin/kube-proxy, as over any proxy; needs root
	$(BUILD) -o $(BIN)/ ./cmd/proxytest
	$(BIN)/proxytest --proxy '$(BIN)/kube-proxy --config {config}'

CLUSTERS ?= 25
.PHONY: random
random: build kubernetes/kube-proxy kubernetes/kube-apiserver kubernetes/etcd ## CLUSTERS (25) random clusters over Kubernetes' own kube-proxy and bin/kube-proxy, with Kubernetes' API server; needs root
	$(BUILD) -o $(BIN)/ ./cmd/proxytest
	$(BIN)/proxytest --random $(CLUSTERS) --kubernetes $(KUBERNETES) --expect kube-proxy-nftables --ready 60s --found $(BIN)/random --proxy '$(KUBERNETES)/kube-proxy --config {config}' --against '$(BIN)/kube-proxy --config {config}'

mutations: ## ten defects of the compiler, each of which the golden cases must find; needs root
	$(GO) test ./internal/testkit/proxytest -run '^TestMutations$$' -v -mutations -timeout 30m

matrix: build kubernetes/kube-proxy ## docs/proxytest-matrix.md: the golden cases over bin/kube-proxy, Kubernetes' own, and examples/; needs root
	$(BUILD) -o $(BIN)/ ./cmd/proxytest
	GO="$(GO)" BIN=$(BIN) KUBE_PROXY=$(KUBERNETES)/kube-proxy VERSION=$(KUBERNETES_VERSION) ./hack/matrix.sh docs/proxytest-matrix.md

.PHONY: announce quick prerequisites format

# Whether Kubernetes' libraries have to be compiled: true or false. Only then does the build name each package. Go is
# asked once, when a rule first needs it.
FIRST_BUILD = $(eval FIRST_BUILD := $$(shell CGO_ENABLED=0 $$(GO) list $$(BUILDFLAGS) -f '{{.Stale}}' k8s.io/client-go/rest))$(FIRST_BUILD)
announce:
	@[ "$(FIRST_BUILD)" != true ] || echo "The first build compiles Kubernetes' libraries: about 130 s of processor time."

# The packages whose tests need root and network namespaces.
NAMESPACES := integration hack examples
# The packages whose tests wait for seconds. They come first, and wait while the compiler is busy with others.
WAITING := ./source/apiserver ./nodelocal/... ./internal/manifests ./internal/ruledump
# go test vets while other tests wait, and tests that wait do so side by side. With a garbage collector that runs
# seldom, tests take up to a third less processor time, and the compiler a tenth.
quick: export GOGC = 400
quick: format ## for each save: no root, no nft program; half a minute with a warm cache, up to 45 s after a change of model
	$(GO) test -vet=all $(PARALLEL) -parallel 16 -short $$($(GO) list $(WAITING) ./... | grep -Ev '/($(subst $() ,|,$(NAMESPACES)))(/|$$)')
	$(GO) vet $(NAMESPACES:%=./%/...)

test: machine build ## all of it; needs root, and the programs of NEEDS, which it installs
	$(MAKE) --no-print-directory -O -j $$(nproc) check test-32 fuzz modules GUIDED=
	$(MAKE) --no-print-directory unit NFTPROXY_BINARIES=$(abspath $(BIN))

# The programs that `make test` needs beside Go, make and git, each with its package in Debian. There is no other list.
NEEDS = nft:nftables iptables-nft-restore:iptables iptables-legacy-restore:iptables gcc:gcc gcc:libc6-dev python3:python3 ip:iproute2 portmap:containernetworking-plugins bird:bird2 \
	$(if $(RUNS_386),,qemu-arm-static:qemu-user-static)
CNI_PLUGINS := /usr/lib/cni
POLICY := /usr/sbin/policy-rc.d

# What needs the programs.
WANTS := make test
# bird2 and containerd bring daemons, which tests start in their namespaces. They must not run on the machine itself,
# now or later.
prerequisites: ## installs what `make test` lacks; with NO_INSTALL=1, or without root or apt-get, only names it
	@programs=; packages=; PATH="$$PATH:$(CNI_PLUGINS)"; \
	for need in $(NEEDS); do \
		program=$${need%:*}; package=$${need#*:}; \
		command -v $$program >/dev/null && continue; \
		case "$$programs " in *" $$program "*) ;; *) programs="$$programs $$program";; esac; \
		case "$$packages " in *" $$package "*) ;; *) packages="$$packages $$package";; esac; \
	done; \
	[ "$$(id -u)" = 0 ] || { echo "$(WANTS) lacks root (sudo $(WANTS))$${programs:+ and$$programs (apt-get install$$packages)}; make quick needs nothing but Go" >&2; exit 1; }; \
	[ -n "$$programs" ] || exit 0; \
	if [ -n "$(NO_INSTALL)" ] || ! command -v apt-get >/dev/null; then \
		echo "$(WANTS) lacks$$programs (apt-get install$$packages); make quick needs nothing but Go" >&2; exit 1; \
	fi; \
	echo "$(WANTS) lacks$$programs: apt-get installs$$packages (NO_INSTALL=1 refuses)"; \
	policy=$(POLICY); [ -e $$policy ] || { printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; trap "rm -f $$policy" EXIT; }; \
	apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$packages >/dev/null; \
	case "$$packages " in *" bird2 "*) ! command -v update-rc.d >/dev/null || update-rc.d bird disable;; esac; \
	case "$$packages " in *" containerd "*) ! command -v update-rc.d >/dev/null || update-rc.d containerd disable;; esac

.PHONY: machine
# The tests of direct return hold both ends of some 5,000 connections in one process.
FILES := 16000
machine: prerequisites
	@./hack/machine.sh $(FILES)

format:
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi

# With what BUILD has compiled. Otherwise the checks compile all libraries once more.
CHECK := CGO_ENABLED=0 GOFLAGS="$(shell $(GO) env GOFLAGS) -tags=grpcnotrace -trimpath -buildvcs=false"
check: format
	$(CHECK) $(GO) vet ./...
	$(CHECK) $(STATICCHECK) ./...
	cd deploy && $(CHECK) $(GO) vet ./... && $(CHECK) $(STATICCHECK) ./...
	cd tools && $(CHECK) $(GO) vet ./... && $(CHECK) $(STATICCHECK) ./...
	$(ACTIONLINT)
	$(MAKE) check-api api

api: ## the Go API: nothing that breaks programs built on the last version tag, but for what breaking.txt lists
	GO=$(GO) ./hack/goapi/check.sh hack/goapi/breaking.txt

# The first run compiles buf, which takes minutes.
BUF := cd tools && $(GO) tool buf

check-api: ## the node-local API: style, generated code that is current, nothing that breaks clients of a release
	$(BUF) lint ..
	$(BUF) breaking .. --against ../nodelocal/v1/released.binpb
	rm -rf $(BIN)/_api && mkdir -p $(BIN)/_api
	$(BUF) generate .. --template buf.gen.yaml -o $(abspath $(BIN))/_api/tools
	for file in nodelocal.pb.go nodelocal_grpc.pb.go; do diff -u nodelocal/v1/$$file $(BIN)/_api/nodelocal/v1/$$file || { echo "run make generate"; exit 1; }; done

generate: ## the Go code of the node-local API
	$(BUF) generate .. --template buf.gen.yaml

unit: ## unit, property, golden and network-namespace tests
	ulimit -n $(FILES) && $(TEST) -race ./...

modules: ## the tests of deploy/ and tools/
	cd deploy && $(CHECK) $(TEST) ./...
	cd tools && $(CHECK) $(TEST) $(if $(BROWSER),,-short) ./...
	@$(if $(BROWSER),,echo "NOT TESTED: ruledump's page in a browser, because none is installed (make test-page installs Chromium, 124 MB)")

# A browser is not in NEEDS: it takes half a minute to install and 414 MB, and Ubuntu has no package of it.
BROWSER = $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
.PHONY: test-page picture
test-page: ## the page of `ruledump check -o html` in a headless Chromium, which it installs; part of `make test` where a browser is installed
	@[ -n "$(BROWSER)" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
	cd tools && $(CHECK) $(TEST) -count=1 ./page

picture: ## docs/check.png: the page of `ruledump check -o html` for the node of its tests; needs Chromium
	cd tools && $(CHECK) $(TEST) -count=1 ./page -run '^TestPage$$/^picture' -args -picture $(abspath docs/check.png)

fuzz: ## each fuzz target for a short while; `make fuzz/PACKAGE` for those of one package
	@$(MAKE) --no-print-directory $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | sed 's,^\.,fuzz,')

# Inputs that reach new code are found sooner with -fuzz, for which the compiler instruments all libraries. 5,000 inputs
# find no more with it, so make test does without.
GUIDED = -fuzz=.
fuzz/%: # one binary for all targets of a package
	@set -e; binary=$(abspath $(BIN))/$@.test; \
	$(if $(GUIDED),,$(CHECK)) $(GO) test -c $(GUIDED) -o $$binary ./$*; \
	cd $*; for target in $$($$binary -test.list '^Fuzz'); do \
		echo "fuzz $* $$target"; \
		$$binary -test.run '^$$' -test.fuzz "^$$target$$" -test.fuzztime $(FUZZTIME) -test.fuzzcachedir $$binary.cache; \
	done

golden: ## rewrite what is generated: rulesets, converted configurations, lists of metrics, ruledump's JSON Schema, tables in docs/
	$(GO) test ./internal/testkit/flows -run '^TestGoldenRulesets$$' -update
	$(GO) test ./internal/ruledump/verb -run '^(TestGeneratedSchema|TestOptionsInDocs|TestCheckPage)$$' -update
	$(GO) test ./integration -run '^TestTroubleshooting$$' -update
	$(GO) test ./internal/config ./internal/metrics ./cmd/kube-proxy ./examples -update

bench: ## benchmarks; compare numbers of one run only
	$(GO) test -run '^$$' -bench . -benchmem ./nft ./compiler ./proxy ./tracker ./internal/manifests ./conntrack ./nodelocal/server ./model ./internal/metrics ./hack/performance ./integration/scale ./integration/directreturn

.PHONY: compare
compare: build kubernetes/kube-proxy ## the tables of docs/measurements-kube-proxy.md: beside Kubernetes' own; needs root and a quiet machine for 15 minutes
	$(GO) run ./hack/compare --kube-proxy $(KUBERNETES)/kube-proxy --patience 15s --page docs/measurements-kube-proxy.md -v

plot: build kubernetes/kube-proxy ## docs/performance.svg, the chart of docs/measurements-kube-proxy.md: first Sync, one change and memory, with kube-proxy's; needs root and a quiet machine for half an hour
	$(GO) run ./hack/compare --kube-proxy $(KUBERNETES)/kube-proxy --brief --limit 10m --sizes 1000x2,5000x2,10000x2,20000x2,44000x2 --figures $(BIN)/figures.json -v
	$(GO) run ./hack/performance -beside $(BIN)/figures.json

SOAK ?= 30m
SEED ?= 0
soak: prerequisites ## random changes, faults and traffic for SOAK (30m); SEED replays one; the last line is the verdict
	$(GO) test -c -o $(BIN)/soak.test ./integration/soak
	cd integration/soak && $(abspath $(BIN))/soak.test -test.run '^TestSoak$$' -test.timeout 0 -test.v -soak $(SOAK) -seed $(SEED)

# Packages that encode and decode binary data, or compute with it. The last one has most of client-go, which takes the
# compiler minutes for each processor: `make test` leaves it to test-arch.
ENCODERS := ./internal/netlinkattr ./nft ./conntrack ./internal/nodeaddr ./compiler ./evaluator ./internal/leftovers
ENCODERS_OF_DUMPS := ./internal/ruledump

# true where 32-bit programs run: not on arm64, and not where the kernel's IA-32 emulation is off. Go is asked once, when
# a rule first needs it.
RUNS_386 = $(eval RUNS_386 := $$(shell CGO_ENABLED=0 GOARCH=386 $$(GO) run ./hack/tryrun 2>/dev/null && echo true))$(RUNS_386)

# Elsewhere the 32-bit processor is arm: qemu's user emulation of 386 crashes as soon as a Go program has a second thread.
test-32: ## the tests of ENCODERS that need no kernel, as 32-bit programs: 386, or arm in qemu where 386 does not run
	@[ "$(RUNS_386)" = true ] || command -v qemu-arm-static >/dev/null || \
		{ echo "make test-32 lacks qemu-arm-static (apt-get install qemu-user-static): this machine runs no 386 programs" >&2; exit 1; }
	CGO_ENABLED=0 $(if $(RUNS_386),GOARCH=386 $(TEST),GOARCH=arm $(TEST) -exec qemu-arm-static) -short $(ENCODERS)

test-arch: ## the same, and those of dumps, for 32 bits, s390x (big-endian) and arm64; needs qemu-user-static
	$(MAKE) --no-print-directory test-32 ENCODERS="$(ENCODERS) $(ENCODERS_OF_DUMPS)"
	CGO_ENABLED=0 GOARCH=s390x $(GO) test -short -count=1 -exec qemu-s390x-static $(ENCODERS) $(ENCODERS_OF_DUMPS)
	CGO_ENABLED=0 GOARCH=arm64 $(GO) test -short -count=1 -exec qemu-aarch64-static $(ENCODERS) $(ENCODERS_OF_DUMPS)

# A copy of the database in a directory works too: VULNDB=file:///path.
VULNDB ?= https://vuln.go.dev
vulnerabilities: ## published vulnerabilities in what the programs call; needs the network
	@$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0 -db $(VULNDB) -tags grpcnotrace $(COMMANDS) $(PLUGIN) || \
		{ echo "vulnerabilities were found, or could not be looked for: this needs $(VULNDB)" >&2; exit 1; }

test-skew: ## the version before this one (PREVIOUS=REVISION, the last tag) and this one, in turns, under connections
	$(TEST) ./integration/takeover -run '^TestSkew$$' -v $(if $(PREVIOUS),-previous=$(PREVIOUS))

.PHONY: test-kubernetes
test-kubernetes: prerequisites kubernetes/kube-proxy kubernetes/kube-apiserver kubernetes/etcd ## with Kubernetes' own programs: takeovers in each mode and back, a real API server; records their rules and answers anew; needs root
	$(TEST) ./integration/takeover -count=1 -timeout 40m -run '^(TestTakeover|TestLeftoversOfModeIPTables|TestRealKubeProxy)$$' -args -kube-proxy $(abspath $(KUBERNETES))/kube-proxy
	$(TEST) ./integration -count=1 -run '^TestMigrationPage$$/^HTTP' -args -kube-proxy $(abspath $(KUBERNETES))/kube-proxy
	$(TEST) ./integration/realapiserver ./internal/testkit/apiservertest -count=1 -timeout 20m -args -kubernetes $(abspath $(KUBERNETES))
	$(TEST) ./internal/testkit/proxytest -count=1 -run '^TestKubernetesAPIServer$$' -args -kubernetes $(abspath $(KUBERNETES))

PARTS ?=
FOCUS ?=
FROM  ?=
.PHONY: e2e
e2e: WANTS = make e2e
e2e-mutants: WANTS = make e2e-mutants
e2e e2e-mutants: NEEDS = containerd:containerd runc:runc mmdebstrap:mmdebstrap ptp:containernetworking-plugins iptables:iptables nft:nftables
e2e: prerequisites build kubernetes ## docs/e2e-report.md: Kubernetes' own e2e suite and scenarios in a cluster of three nodes; PARTS=dns,swap for some of it; needs root and 8 GB
	$(BUILD) -o $(BIN)/_e2e ./hack/e2e
	$(BIN)/_e2e run --go $(GO) --bin $(BIN) --parts '$(PARTS)' --focus '$(FOCUS)' --from '$(FROM)' --page $(if $(PARTS)$(FOCUS),$(BIN)/e2e-report.md,docs/e2e-report.md)

.PHONY: e2e-mutants
e2e-mutants: prerequisites build kubernetes ## docs/e2e-mutants.md: three defects of the compiler, which Kubernetes' suite must find, in ten minutes; needs root and 8 GB
	$(BUILD) -o $(BIN)/_e2e ./hack/e2e
	$(BIN)/_e2e up --go $(GO) --bin $(BIN)
	$(BIN)/_e2e mutants --go $(GO) --bin $(BIN) --page docs/e2e-mutants.md; verdict=$$?; $(BIN)/_e2e down; exit $$verdict

test-kernels: ## the tests that depend on the kernel, on Debian's kernels 6.1 and 6.12 in qemu; long
	$(GO) run ./hack/kernels -report docs/kernels.md

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

clean:
	rm -rf bin
