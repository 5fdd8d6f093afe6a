# Everything a contributor needs. `make test` is what CI runs.

GO          ?= go
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X k8s.io/component-base/version.gitVersion=v0.0.0-$(VERSION)
# A number of runs, not a time: at a deadline go test now and then reports "context deadline
# exceeded" for a fuzz target that found nothing. `make fuzz FUZZTIME=10m` for a long one.
FUZZTIME    ?= 5000x

.PHONY: build demo test check unit fuzz golden bench clean

build: ## static binaries in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/kube-proxy ./cmd/ruledump

demo: build ## the main job, in network namespaces that it makes and removes
	$(GO) build -o bin/demo ./integration/demo
	bin/demo

test: build check unit fuzz ## all of it; needs root and the nft program

check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(STATICCHECK) ./...

unit: ## unit, property, golden and network-namespace tests
	$(GO) test -race ./...

fuzz: ## each fuzz target for a short while
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

golden: ## rewrite ruleset.nft of every golden case
	$(GO) test ./integration -run '^TestGoldenRulesets$$' -update

bench: ## benchmarks; compare numbers of one run only
	$(GO) test -run '^$$' -bench . -benchmem ./nft ./compiler ./tracker ./source/manifests

clean:
	rm -rf bin
