# make prints the targets. Everything needs only Go, git and make.

GO ?= go
NODES ?= 3
DATA ?= data
BENCH_FLAGS ?=
RUNS ?= 1
QUEUES ?= 10000
SOAK ?= 30m
CHAOS_TIME ?= 30m
CHAOS_SEED ?= 0
CHAOS_SCALE ?= 10
chaos-runs: CHAOS_SEED = 1
chaos-runs: RUNS = 20
FUZZ_TIME ?= 10m
# The version before, for upgrade: a tag, or the oldest commit whose formats are these.
BEFORE ?= c8ea209
MUTANTS ?= all
ASLEEP ?=
MUTANTS_FLAGS ?=

# Packages whose races matter; the others start processes or are generated.
RACE_PKGS = ./cluster/raftlog ./fsm/... ./amqp/... ./cluster/...
# Packages with tests that are long, and begin with testing.Short.
LONG_PKGS = ./jepsen/... $(shell grep -rl --include='*_test.go' 'testing\.Short()' amqp cluster cmd docs fsm | sed 's|^|./|; s|/[^/]*$$||' | sort -u)
# Those whose clusters have sleeping queues with ASLEEP.
ASLEEP_PKGS = ./jepsen/conform ./jepsen ./jepsen/attack ./jepsen/clients ./jepsen/console
# Those that take longest begin first.
SLOW_PKGS = ./jepsen/conform ./cluster ./jepsen ./cluster/raftlog
SLOWEST ?= 0
TESTRUN = $(GO) run ./cmd/testrun -logs report/$@ -slowest $(SLOWEST) --
# How a release is built: without C, without where and from which checkout it is built, and without symbols, which
# are in an archive of their own.
BARE = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false
RELEASE = $(BARE) -ldflags='-s -w'
GENERATED = '*.pb.go' '*_vtproto.pb.go' '*_gen.go'

.PHONY: help run build test test-race test-cluster check vulncheck reproducible site sbom dist packages image image-test manifests probes release client-packages bench bench-queues bench-connections bench-growth bench-soak bench-backup bench-rolling bench-peers client-suite client-suites rabbit-hole upgrade chaos chaos-runs fuzz mutants generate

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build the server and start a three-node cluster on loopback (NODES=3, DATA=data)
	@echo 'building bin/quorate: the first time takes a minute or two'
	@$(RELEASE) -o bin/quorate ./cmd/quorate
	@bin/quorate dev --nodes $(NODES) --data-dir $(DATA)

build: ## build the binaries into bin/: static, and the same bytes wherever they are built
	$(RELEASE) -o bin/ $(PROGRAMS)
	$(RELEASE) -o bin/quorate-bench ./jepsen/bench

test: ## what everybody runs: every package, without its long tests (SLOWEST=30: list the slowest)
	$(TESTRUN) -short -vet=off -tags invariants,testoptions -p 3 -timeout 20m $(SLOW_PKGS) ./...

test-race: ## the same tests of the packages whose races matter, under the race detector
	$(TESTRUN) -short -vet=off -race -tags invariants -p 3 -timeout 40m $(RACE_PKGS)

test-cluster: ## the long tests: clusters of real processes that are broken, attacked and compared with the rules (ASLEEP=1: only these, with queues that sleep all the time)
	$(TESTRUN) -vet=off -tags invariants,testoptions -p 2 -timeout 60m $(if $(ASLEEP),$(ASLEEP_PKGS) -jepsen.asleep,$(LONG_PKGS))

check: ## formatting, vet, staticcheck, house rules, fresh generated code, go.mod, vulnerabilities, a reproducible build
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "gofmt -w these:"; echo "$$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags invariants ./fsm/... ./amqp/... ./cluster/...
	$(GO) vet -tags testoptions ./cmd/quorate
	$(GO) tool staticcheck ./...
	$(GO) test ./cmd/tidy/...
	$(GO) generate ./...
	git diff --exit-code -- $(GENERATED)
	$(GO) mod tidy -diff
	$(GO) mod verify
	$(MAKE) --no-print-directory vulncheck reproducible

vulncheck: ## known vulnerabilities in what is called, if a database of them can be reached (GOVULNDB)
	@case "$$($(GO) tool govulncheck -C cmd/quorate -scan module 2>&1)" in *"fetching vulnerabilities"*) \
		echo "NOT CHECKED for known vulnerabilities: the database cannot be reached"; exit;; esac; $(GO) tool govulncheck ./...

reproducible: ## build the server in two folders and compare the bytes (CACHE=new: compile all anew for the second)
	@set -e; at=$$(mktemp -d); trap 'chmod -R u+w '$$at'; rm -rf '$$at EXIT; \
	for d in a bb/ccc; do git checkout-index -a --prefix=$$at/$$d/; done; \
	(cd $$at/a && $(RELEASE) -o $$at/first ./cmd/quorate); \
	(cd $$at/bb/ccc && GOCACHE=$(if $(CACHE),$$at/cache,$$($(GO) env GOCACHE)) $(RELEASE) -o $$at/second ./cmd/quorate); \
	cmp $$at/first $$at/second; \
	$(GO) version -m $$at/first | grep -q 'CGO_ENABLED=0'; \
	sha256sum < $$at/first | sed 's/ .*/ quorate, twice/'

site: ## make the documentation in docs a site with a search, which needs no network, in bin/site (Debian: python3-myst-parser, furo)
	sphinx-build -q -E -a -n -W --keep-going -c docs/site docs bin/site

sbom: ## list what the server is linked from, as CycloneDX, in bin/quorate.cdx.json
	mkdir -p bin
	CGO_ENABLED=0 $(GO) tool -modfile=cmd/tidy/sbom/go.mod cyclonedx-gomod app -json -licenses -noserial -main cmd/quorate -output bin/quorate.cdx.json .

# What is given to users: programs for each platform, and what is made of them. Times are that of the commit.
PLATFORMS = linux-amd64 linux-arm64 darwin-arm64
VERSION = $(shell sed -n 's/^const ProductVersion = "\(.*\)"$$/\1/p' cluster/mgmt/api/api.go)
COMMIT_TIME = $(shell git log -1 --format=%ct)
PROGRAMS = ./cmd/quorate ./cmd/quoratectl

dist: ## build the programs for each platform of a release, in bin/dist
	@for p in $(PLATFORMS); do echo $$p; GOOS=$${p%-*} GOARCH=$${p#*-} $(RELEASE) -o bin/dist/$$p/ $(PROGRAMS) || exit 1; done

packages: ## make .deb and .rpm packages for linux/amd64 and linux/arm64, in bin/release
	@mkdir -p bin/release; $(MAKE) --no-print-directory dist PLATFORMS="linux-amd64 linux-arm64"; \
	for arch in amd64 arm64; do for kind in deb rpm; do \
		ARCH=$$arch DIST=bin/dist/linux-$$arch VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(COMMIT_TIME) \
		$(GO) tool -modfile=deploy/packages/go.mod nfpm package --config deploy/packages/nfpm.yaml --packager $$kind --target bin/release/ || exit 1; \
	done; done

image: ## make the container image for linux/amd64 and linux/arm64 without a daemon, in bin/release (docker load -i …)
	@mkdir -p bin/release; $(MAKE) --no-print-directory dist PLATFORMS="linux-amd64 linux-arm64"
	@$(GO) run -C deploy/image . -dist $(CURDIR)/bin/dist -out $(CURDIR)/bin/release -config $(CURDIR)/deploy/image/quorate.conf -version $(VERSION) -time $(COMMIT_TIME)

image-test: image ## the compose files: three nodes and `docker kill`, and one for Azure Service Bus; without a daemon, one is started in namespaces (needs docker.io, docker-compose)
	deploy/compose.sh

# Helm is in a module of its own.
HELM = $(GO) tool -modfile=deploy/kubernetes/go.mod helm

manifests: ## render the Helm chart into deploy/kubernetes/quorate.yaml, and check it against the schemas of Kubernetes 1.30
	$(HELM) lint deploy/kubernetes/chart
	$(HELM) template quorate deploy/kubernetes/chart --namespace quorate --kube-version 1.30.0 > deploy/kubernetes/quorate.yaml
	$(GO) run sigs.k8s.io/kubectl-validate@v0.0.4 --version 1.30 deploy/kubernetes/quorate.yaml
	git diff --exit-code -- deploy/kubernetes/quorate.yaml

probes: ## the probes and the hook of the manifests, asked and called of real nodes as kubelet does
	$(GO) test ./jepsen/deployed -run '^TestProbes$$' -count 1 -v -deployed.probes

release: ## make archives, the programs with symbols, packages, images, the list of modules and checksums of a release, in bin/release
	@tag=$$(git tag --points-at HEAD 'v*'); test -z "$$tag" -o "$$tag" = "v$(VERSION)" || { echo "the tag is $$tag, and the version v$(VERSION)"; exit 1; }
	@rm -rf bin/release bin/dist; $(MAKE) --no-print-directory dist packages image sbom
	@set -e; for p in $(PLATFORMS); do \
		name=quorate-$(VERSION)-$$p; at=bin/dist/$$name; mkdir -p $$at; \
		cp -R bin/dist/$$p/* README.md LICENSE CHANGELOG.md SECURITY.md docs deploy $$at/; \
		GOOS=$${p%-*} GOARCH=$${p#*-} $(BARE) -o bin/dist/$$name-symbols/ $(PROGRAMS); \
		for each in $$name $$name-symbols; do \
			tar --sort=name --mtime=@$(COMMIT_TIME) --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w -C bin/dist -cf - $$each | gzip -n -9 > bin/release/$$each.tar.gz; \
		done; \
	done
	@cp bin/quorate.cdx.json bin/release/quorate-$(VERSION).cdx.json; rm -rf bin/release/oci
	@cd bin/release && sha256sum * > SHA256SUMS && cat SHA256SUMS

# It has setuptools, wheel and pip (Debian: python3-setuptools, python3-wheel, python3-pip).
PYTHON ?= /usr/bin/python3

client-packages: ## vet and build the client packages: Go's, a wheel and a source archive for pip, an archive for npm, in bin/clients
	$(GO) vet ./amqp/client && $(GO) build ./amqp/client
	@rm -rf bin/clients; mkdir -p bin/clients; cp -R deploy/clients bin/clients/source; \
	for each in python js; do cp LICENSE bin/clients/source/$$each/; done
	cd bin/clients/source/python && $(PYTHON) -c 'from setuptools.build_meta import build_sdist; build_sdist("../..")' > /dev/null
	$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir bin/clients bin/clients/source/python
	cd bin/clients && npm pack --silent ./source/js
	@rm -r bin/clients/source; cd bin/clients && ls quorate_client-$(VERSION)-py3-none-any.whl quorate[-_]client-$(VERSION).tar.gz quorate-client-$(VERSION).tgz

bench: build ## the benchmarks on a three-node loopback cluster, with a table (RUNS=1: medians of so many, BENCH_FLAGS=)
	bin/quorate-bench suite --binary bin/quorate --runs $(RUNS) $(BENCH_FLAGS)

bench-queues: build ## thousands of queues: declare, memory, idle, wake, lose a node, restart it (QUEUES=10000)
	bin/quorate-bench queues --binary bin/quorate --queues $(QUEUES) $(BENCH_FLAGS)

bench-connections: build ## thousands of connections and channels that do nothing: what they cost in memory
	bin/quorate-bench connections --binary bin/quorate $(BENCH_FLAGS)

bench-growth: build ## what a message costs with many active queues and with a backlog (RUNS=1: medians of so many)
	bin/quorate-bench growth --binary bin/quorate --runs $(RUNS) $(BENCH_FLAGS)

bench-soak: build ## a mixed load at 70 % of the highest rate for long, with restarts, and whether it stays flat (SOAK=30m)
	bin/quorate-bench soak --binary bin/quorate --duration $(SOAK) --restart-every 1h $(BENCH_FLAGS)

bench-backup: build ## backups under 5,000 messages a second, a restore, and whether all is there (BENCH_FLAGS=)
	$(GO) test ./jepsen -run '^TestBackup$$' -count 1 -v -timeout 0 -jepsen.binary ../bin/quorate -jepsen.backlog 500000 -jepsen.rate 5000 $(BENCH_FLAGS)

bench-rolling: build ## every node restarted in turn, with drains and by SIGKILL, and how long publishers wait (BENCH_FLAGS=)
	$(GO) test ./jepsen -run '^TestRollingRestart$$' -count 1 -v -timeout 0 -jepsen.binary ../bin/quorate -jepsen.queues 1000 -jepsen.rate 1000 $(BENCH_FLAGS)

bench-peers: build ## the same loads on RabbitMQ and NATS JetStream, side by side (RUNS=1: medians of so many)
	bin/quorate-bench peers --binary bin/quorate --runs $(RUNS) $(BENCH_FLAGS)

client-suite: ## the integration tests that ship with amqp091-go, against three nodes (takes port 15672)
	$(GO) test ./jepsen/clients -run TestSuite -clients.suite -count 1 -v

rabbit-hole: ## the tests that ship with rabbit-hole, the library of the Terraform provider, against a node (takes ports 5672 and 15672; docs/evidence/clients.md)
	$(GO) test ./jepsen/clients -run TestRabbitHoleSuite -clients.suite -count 1 -v

client-suites: ## the tests that ship with clients in Java and Perl, from Debian's source packages, and with Azure Service Bus's in Go (takes port 5672, and 5671 and 443 of 127.0.9.1; docs/evidence/clients.md)
	$(GO) test ./jepsen/clients -run 'TestJavaSuite|TestPerlSuite|TestServiceBusSuite' -clients.suite -count 1 -v -timeout 0

# Those that break things for CHAOS_TIME run one after the other, as each can use the whole machine.
CHAOS = TestChaos|TestHealthy|TestSaturation|TestRandomHistory

chaos: ## the long fault run with its report, and the simulation against mends taken back (CHAOS_TIME=30m for each of four tests, CHAOS_SCALE=10, CHAOS_SEED=0: drawn)
	@rm -rf report/chaos; failed=; \
	run() { echo "$$@"; "$$@" || failed=yes; }; \
	run $(GO) test ./jepsen -run '^($(CHAOS))$$' -parallel 1 -count 1 -v -timeout 0 -jepsen.time $(CHAOS_TIME) -jepsen.seed $(CHAOS_SEED) -jepsen.keep -jepsen.report ../report/chaos; \
	run $(GO) test ./jepsen -skip '^($(CHAOS))$$' -count 1 -v -timeout 0 -jepsen.scale $(CHAOS_SCALE) -jepsen.seed $(CHAOS_SEED) -jepsen.keep -jepsen.kills 20 -jepsen.split 5s -jepsen.powerlosses 20 -jepsen.powercontrol -jepsen.report ../report/chaos; \
	run $(GO) test ./cluster/sim -run '^TestFindings$$' -count 1 -v -timeout 0 -sim.findings all; \
	run $(GO) run ./jepsen/report/sum report/chaos; \
	test -z "$$failed"

upgrade: ## the version before and this one in one cluster under load, up and down again (BEFORE=commit or tag)
	$(GO) test ./jepsen -run '^TestUpgrade$$' -count 1 -v -jepsen.before $(BEFORE)

chaos-runs: ## short runs of all workloads under faults, with seeds from CHAOS_SEED on, and their sums (RUNS=20, CHAOS_SEED=1)
	@mkdir -p bin; rm -rf report/chaos-runs; failed=; \
	$(GO) test -c -o bin/jepsen.test ./jepsen && $(GO) build -tags testoptions -o bin/quorate-testoptions ./cmd/quorate || exit 1; \
	for seed in $$(seq $(CHAOS_SEED) $$(($(CHAOS_SEED) + $(RUNS) - 1))); do \
		(cd jepsen && ../bin/jepsen.test -test.run '^($(CHAOS))$$' -test.parallel 1 -test.timeout 0 -jepsen.binary ../bin/quorate-testoptions \
			-jepsen.seed $$seed -jepsen.keep -jepsen.report ../report/chaos-runs/$$seed) || failed="$$failed $$seed"; \
	done; \
	$(GO) run ./jepsen/report/sum report/chaos-runs; echo "seeds that failed:$${failed:- none}"; test -z "$$failed"

fuzz: ## every fuzz target in turn (FUZZ_TIME=10m each)
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) -fuzzminimizetime 2s $$pkg; \
		done; \
	done

mutants: ## run the tests against deliberate bugs (MUTANTS=id,id, a folder, S7 or 10%; MUTANTS_FLAGS='-mutants.shard 2/4')
	$(GO) test ./jepsen/mutants -run '^TestMutants$$' -count 1 -timeout 0 -mutants '$(MUTANTS)' $(MUTANTS_FLAGS)

generate: ## write the generated code again
	$(GO) generate ./...
