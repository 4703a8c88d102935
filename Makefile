# tierd: `make` lists the targets. Everything needs Go, make and git alone; the
# tests use more tools where they are there (scripts/setup-test-tools).

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 10s
BENCH    ?= .
BENCHFLAGS ?=
KEEP     ?=
UNIT      = $$($(GO) list ./... | grep -v -e /test/e2e -e /test/demo -e /test/tiering -e /test/deps -e '/deploy$$')

PREFIX   ?= /usr/local
DESTDIR  ?=
BINDIR    = $(DESTDIR)$(PREFIX)/bin
SBINDIR   = $(DESTDIR)$(PREFIX)/sbin
MANDIR    = $(DESTDIR)$(PREFIX)/share/man
DOCDIR    = $(DESTDIR)$(PREFIX)/share/doc/tierd
UNITDIR   = $(DESTDIR)$(PREFIX)/lib/systemd/system

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/tierd and bin/tierctl, static
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/tierd ./cmd/tierctl

.PHONY: demo
demo: build ## watch hot data move up, for about two minutes (KEEP=1: leave it running)
	$(GO) run ./test/demo $(if $(KEEP),--keep)

.PHONY: test
test: build ## THE test command: tools, format, vet, lint, unit tests with -race, mutants, crashes, end to end
	scripts/setup-test-tools
	scripts/test all

.PHONY: unit
unit: ## unit tests without the race detector
	$(GO) test $(UNIT)

.PHONY: race
race: ## unit tests with the race detector
	scripts/test race

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, import fences, house style
	scripts/test format vet lint

.PHONY: mutants
mutants: ## switch the rules off that keep data safe, one by one: the random suites must notice
	scripts/test mutants

.PHONY: crash
crash: build ## two hours of crashes: power cuts, kills, boots, deliberate bugs (PART=states, kills, ...)
	scripts/crash $(or $(PART),all)

.PHONY: e2e
e2e: build ## real daemon, real clients
	scripts/test e2e

.PHONY: interop
interop: build ## every NBD client over Unix, TCP and TLS; writes the table of docs/interoperability.md
	scripts/setup-test-tools
	$(GO) test -count=1 -run '^TestInterop$$' ./test/e2e -update

.PHONY: vm
vm: build ## a real kernel's NBD client in a virtual machine (needs qemu; says what is missing; test/vm/README.md)
	scripts/vm

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (10s)
	scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## tierd beside nbdkit and qemu-nbd on the same disk (BENCHFLAGS, see test/bench), and bench-isolation
	$(GO) run ./test/bench $(BENCHFLAGS)
	$(GO) run ./test/flush -isolation -seconds 1 -dir /var/tmp

.PHONY: bench-flush
bench-flush: build ## time of FLUSH beside a slow drive, against pass marks (BENCHFLAGS, see test/flush)
	$(GO) run ./test/flush $(BENCHFLAGS)

.PHONY: bench-isolation
bench-isolation: build ## hits beside slow requests on one connection, against a pass mark (BENCHFLAGS, see test/flush)
	$(GO) run ./test/flush -isolation -seconds 1 -dir /var/tmp $(BENCHFLAGS)

.PHONY: bench-tiering
bench-tiering: build ## movement of extents from cold, against pass marks, some minutes (BENCHFLAGS, see test/tiering)
	$(GO) run ./test/tiering -json bin/bench-tiering.json $(BENCHFLAGS)

.PHONY: microbench
microbench: ## the Go benchmarks of all packages (BENCH=regexp)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./nbd/... ./pkg/... ./tiering/...

.PHONY: eval
eval: ## replay real traces against the planner and compare with the reference figures and bounds
	$(GO) test -count=1 -v -run '^TestEvaluation$$' ./tiering/simulate

.PHONY: cover
cover: ## coverage of the unit tests by package, and coverage.html in bin/
	@mkdir -p bin
	$(GO) test -coverprofile=bin/cover.out -coverpkg=./cmd/...,./nbd/...,./pkg/...,./tiering/... $(UNIT)
	$(GO) tool cover -func=bin/cover.out | tail -1
	$(GO) tool cover -html=bin/cover.out -o bin/coverage.html

.PHONY: check-deploy
check-deploy: ## units, rules and dashboards in deploy/ against a real daemon and a real prometheus
	$(GO) test -count=1 -v ./deploy

.PHONY: man
man: build ## manual pages in bin/man
	rm -rf bin/man
	bin/tierctl man bin/man/man8
	mkdir -p bin/man/man5
	cp deploy/man/tierd.8 bin/man/man8/
	cp deploy/man/tierd.yaml.5 bin/man/man5/

.PHONY: install
install: man ## install programs, units, samples and manual pages (DESTDIR, PREFIX)
	install -d $(SBINDIR) $(BINDIR) $(UNITDIR) $(MANDIR)/man5 $(MANDIR)/man8 $(DOCDIR)
	install -m 0755 bin/tierd $(SBINDIR)/
	install -m 0755 bin/tierctl $(BINDIR)/
	sed 's|/usr/sbin/tierd|$(PREFIX)/sbin/tierd|' deploy/systemd/tierd.service > bin/tierd.service
	sed 's|/usr/bin/tierctl|$(PREFIX)/bin/tierctl|' deploy/systemd/tierd-attach@.service > bin/tierd-attach@.service
	install -m 0644 bin/tierd.service bin/tierd-attach@.service deploy/systemd/tierd.socket $(UNITDIR)/
	install -m 0644 bin/man/man5/* $(MANDIR)/man5/
	install -m 0644 bin/man/man8/* $(MANDIR)/man8/
	install -m 0644 README.md CHANGELOG.md LICENSE docs/operations.md docs/simulation.md $(DOCDIR)/
	cp -r deploy/config deploy/nbd deploy/prometheus deploy/grafana $(DOCDIR)/
	install -d $(DOCDIR)/systemd
	cp -r deploy/systemd/nbd@.service.d $(DOCDIR)/systemd/

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
