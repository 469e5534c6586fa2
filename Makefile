# `make help` lists the targets.

TOOL    := go tool -modfile=tools/go.mod
# The tests of the whole product, its benchmarks and the papers are in a separate module.
IN_RIG   = cd rig && go tool -modfile=../tools/go.mod $(1)
# A tag gives its commit a version. Before the first tag, v0.1.0, versions are 0.1.0-dev with the number and hash of the commit.
VERSION ?= $(shell git describe --tags --dirty 2>/dev/null || git describe --always --dirty 2>/dev/null | sed "s/^/0.1.0-dev-$$(git rev-list --count HEAD)-g/" | grep . || echo 0.1.0-dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Everything is compiled as in a release, so that the tests run what is shipped and nothing is compiled twice.
export CGO_ENABLED := 0
export GOFLAGS += -trimpath
# Packages whose tests run on emulated ARM: those with numeric code.
ARM_PACKAGES := ./nn ./nn/kernel ./nn/safetensors ./forecast ./series ./series/synth ./metric ./fed/exact ./fed/mask ./fed/limit ./fed/aggregate ./fed/serveropt ./fed/clientopt ./fed/localtrain ./series/feature

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the static binaries into bin/ and print their sizes
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/loadstar ./cmd/loadstar-agent
	go -C rig build -ldflags '$(LDFLAGS)' -o $(CURDIR)/bin/ ./cmd/loadstar-lab
	@ls -l bin/loadstar bin/loadstar-agent bin/loadstar-lab | awk '{ printf "%s %.1f MB\n", $$9, $$5 / 1e6 }'

.PHONY: version
version: ## Print the version that a build gets
	@echo $(VERSION)

.PHONY: quick
quick: format vet-host test-quick ## Run quick checks, within a minute: format, vet, unit tests without servers or child processes

.PHONY: check
check: format tidy vet lint errcheck test ## Run all checks that a change must pass: format, tidy modules, vet, staticcheck, errcheck, all tests

.PHONY: format
format: ## Fail if gofumpt would change a file
	@out=$$($(TOOL) gofumpt -l $$(git ls-files -co --exclude-standard '*.go' ':!proto')); \
	if [ -n "$$out" ]; then echo "not formatted (run make fix):"; echo "$$out"; exit 1; fi

.PHONY: fix
fix: ## Format the code
	$(TOOL) gofumpt -w $$(git ls-files -co --exclude-standard '*.go' ':!proto')

.PHONY: tidy
tidy: ## Fail if go mod tidy would change a go.mod or go.sum
	go mod tidy -diff
	go -C rig mod tidy -diff
	go -C tools mod tidy -diff
	go -C nn/kernel/gen mod tidy -diff
	go -C tools/helm mod tidy -diff

.PHONY: vet-host
vet-host:
	go vet ./...
	go -C rig vet ./...

.PHONY: vet
vet: vet-host ## Run go vet, also for arm64 because of its assembly
	GOARCH=arm64 go vet ./nn/...
	cd nn/kernel/gen && go vet ./...

.PHONY: lint
lint: ## Run staticcheck
	$(TOOL) staticcheck ./...
	$(call IN_RIG,staticcheck ./...)
	cd nn/kernel/gen && go tool -modfile=../../../tools/go.mod staticcheck ./...

.PHONY: errcheck
errcheck: ## Fail if code outside the tests ignores an error; tools/errcheck.txt lists exceptions
	$(TOOL) errcheck -ignoretests -exclude tools/errcheck.txt ./...
	$(call IN_RIG,errcheck -ignoretests -exclude ../tools/errcheck.txt ./...)

.PHONY: vulncheck
vulncheck: ## Check for known vulnerabilities in called code; prints "not checked" if the database is unreachable
	@out=$$({ $(TOOL) govulncheck ./... && $(call IN_RIG,govulncheck ./...); } 2>&1); code=$$?; \
	case "$$out" in \
	*"fetching vulnerabilities"*) echo "not checked: the Go vulnerability database cannot be reached" ;; \
	*) echo "$$out"; exit $$code ;; \
	esac

.PHONY: workflows
workflows: ## Check that the workflow of the hosted CI is valid and runs every part of .ci/run
	$(TOOL) actionlint .github/workflows/*.yaml
	@want="part: [$$(.ci/run --list | paste -sd, | sed 's/,/, /g')]"; grep -qF "$$want" .github/workflows/ci.yaml || { echo "ci.yaml has no $$want"; exit 1; }

.PHONY: arch
arch: ## Run only the architecture test
	go test ./internal/archtest

# Packages whose tests mostly need servers, databases, emulators or child processes. Slow tests of the other packages
# skip themselves under -short.
SLOW_PACKAGES := agent cmd/loadstar cmd/loadstar-agent internal/testkit/pgtest \
	server server/coordinator server/gateway server/ledger server/operator server/sqlstore
empty :=
space := $(empty) $(empty)
.PHONY: test-quick
test-quick:
	go -C rig test -short ./bench/engine ./bench/skill ./faultfs ./leak ./paper ./pretrain
	go test -short $$(go list ./... | sed "s|^$$(go list -m)|.|" | grep -vE '^\./($(subst $(space),|,$(strip $(SLOW_PACKAGES))))$$')

.PHONY: test
test: ## Run all tests
	go test -vet=off -timeout 30m ./... # make vet runs all vet checks; a busy machine is slow
	go -C rig test -vet=off -timeout 30m ./...

# The long tests have more kills, more model steps and larger fleets. $(1) selects tests, $(2) packages.
LONG = LOADSTAR_TEST_LONG=1 go $(if $(3),-C $(3)) test -count=1 -timeout 60m $(if $(1),-run '$(1)') $(2)

.PHONY: test-long
test-long: ## Run all tests with their long settings; about half an hour on two cores
	$(call LONG,,./...)
	$(call LONG,,./...,rig)

.PHONY: test-kills
test-kills: ## Run the tests that kill processes, with their long settings
	$(call LONG,Kill|Crash,./agent/... ./cmd/loadstar ./lab/... ./server/...)

.PHONY: robust
robust: ## Train with hostile clients and three seeds, and print the errors with each defence; takes hours; RESULTS=FILE stores finished runs; PRIVATE=1 for private plans only, about ten minutes
ifdef PRIVATE
	LOADSTAR_TEST_LONG=1 go test ./lab/sim -run TestRobustPrivate -v -timeout 90m
else
	LOADSTAR_TEST_LONG=1 go test ./lab/sim -run 'TestRobust$$' -v -timeout 90m
	LOADSTAR_TEST_LONG=1 LOADSTAR_RESULTS=$(abspath $(RESULTS)) go test ./lab/sim -run 'TestPoison|TestPlantedWeight|TestHonestCost' -v -timeout 0
	LOADSTAR_TEST_LONG=1 go -C rig test ./year -run TestFlagsOfHonestModels -v -timeout 0
endif

.PHONY: garbage
garbage: ## Train with 3 % of garbage readings in 5 of 42 clients and three seeds, with and without removing the garbage; half an hour; RESULTS=FILE stores finished runs
	LOADSTAR_TEST_LONG=1 LOADSTAR_RESULTS=$(abspath $(RESULTS)) go test ./lab/sim -run TestGarbage -v -timeout 0

.PHONY: test-models
test-models: ## Run the model-based tests, with their long settings
	$(call LONG,Model|Law,./agent/state ./fed/... ./lab/... ./server/...)

.PHONY: year
year: ## Run a year of live forecasts for 42 real clients on a virtual clock, and compare live forecasts with backtests on three groups; about half an hour
	LOADSTAR_TEST_LONG=1 go -C rig test -count=1 -timeout 120m -v -run 'TestYear$$|TestLiveEqualsBacktest' ./year

.PHONY: test-device
test-device: ## Test the agent on an emulated small device, with a year of readings; needs qemu-user-static
	$(call LONG,SmallDevice,./cmd/loadstar-agent)

# All packages whose goroutines share memory.
RACE_PACKAGES := ./agent/... ./server/... ./keeper ./fed/serve ./series/feature ./internal/connlimit ./internal/mtls ./lab/... ./series ./forecast ./nn
.PHONY: race
race: ## Test all concurrent packages with the race detector; needs gcc
	CGO_ENABLED=1 go test -race -timeout 60m $(RACE_PACKAGES)
	CGO_ENABLED=1 go -C rig test -race -timeout 60m ./simulation ./faultfs ./fleetload ./bench/...

# The translated C code of SQLite is not instrumented: it has no goroutines, and would take minutes to compile and run.
RACE_SHORT := CGO_ENABLED=1 go test -race -short -timeout 20m -gcflags='modernc.org/...=-race=false'
.PHONY: race-short
race-short: ## Test the packages with the most goroutines with the race detector, without slow tests, for CI
	$(RACE_SHORT) -skip 'TestCheckLog|TestFailover|TestFormerPrimary|TestVerifyFull|TestSilentDatabase|TestCancelledCommit' ./agent/... $(addprefix ./server/,blob coordinator gateway ledger operator pki) ./internal/mtls ./lab/outlook
	$(subst go test,go -C rig test,$(RACE_SHORT)) ./fleetload
	$(RACE_SHORT) ./lab/sim -run 'Workers|Resume|Best'

RUNS    ?= 1
REPEATS ?= 100
.PHONY: repeat
repeat: ## Repeat the tests on a busy machine: the suite RUNS times, timing tests REPEATS times; ONLY=server/ledger for one package
	@RUNS=$(RUNS) REPEATS=$(REPEATS) ONLY="$(ONLY)" tools/repeat.sh

# Generate the code of the wire protocol. $(1) is a folder for the plugins, $(2) the output folder.
define PROTOC
	go build -modfile=tools/go.mod -o $(1)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go && \
	protoc -I proto --plugin=$(1)/protoc-gen-go --plugin=$(1)/protoc-gen-connect-go --go_out=$(2) --go_opt=module=loadstar \
		--connect-go_out=$(2) --connect-go_opt=module=loadstar,simple=true,package_suffix= proto/loadstar/v1/*.proto
endef

.PHONY: generate
generate: ## Regenerate the assembly and the code of the wire protocol; needs protoc
	go generate ./...
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && $(call PROTOC,$$dir,.)

.PHONY: generated
generated: ## Fail if the committed assembly or protocol code differs from the generators' output
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	go -C nn/kernel/gen run . -dir $$dir && \
	for f in $$dir/*; do diff -q nn/kernel/$$(basename $$f) $$f || { echo "run make generate"; exit 1; }; done
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && mkdir $$dir/out && $(call PROTOC,$$dir,$$dir/out) && \
	for f in $$dir/out/proto/loadstar/v1/*; do diff -q proto/loadstar/v1/$$(basename $$f) $$f || { echo "run make generate"; exit 1; }; done

# npm ends without a message if a registry is slow, so retry. Its cache keeps what has arrived.
NPM_TRY := npm ci --ignore-scripts --silent --prefer-offline
NPM_CI := { $(NPM_TRY) || $(NPM_TRY); }

.PHONY: web
web: ## Rebuild the bundles of the report's charts and of the dashboard from web/; needs npm
	cd web/report && $(NPM_CI) && npm run --silent build
	cd web/dashboard && $(NPM_CI) && npm run --silent types && npm run --silent build

# The gzipped files are compared by content, because zlib versions compress differently.
.PHONY: web-check
web-check: ## Fail if the committed bundles differ from what web/ builds
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	(cd web/report && $(NPM_CI) && node build.mjs $$dir/report) && \
	(cd web/dashboard && $(NPM_CI) && npm run --silent types && node build.mjs $$dir/webui) && \
	for f in report/bundle/page.js report/bundle/page.css report/THIRD_PARTY.md webui/THIRD_PARTY.md; do \
		case $$f in report/*) old=lab/$$f ;; *) old=internal/$$f ;; esac; \
		diff -q $$old $$dir/$$f || { echo "run make web"; exit 1; }; \
	done && \
	for f in server.html server.css server.js agent.html agent.css agent.js; do \
		gzip -dc internal/webui/bundle/$$f.gz >$$dir/old && gzip -dc $$dir/webui/bundle/$$f.gz | cmp -s - $$dir/old || \
			{ echo "internal/webui/bundle/$$f.gz is not what web/dashboard builds: run make web"; exit 1; }; \
	done

# Documentation and packages. They depend only on the commit and its time, so that anybody can repeat the build.
EPOCH     ?= $(shell git log -1 --format=%ct)
DIST      ?= dist
PLATFORMS ?= linux-amd64 linux-arm64 linux-armv7 darwin-arm64 windows-amd64

.PHONY: man
man: ## Write man pages and shell completions into dist/
	@mkdir -p $(DIST)/completions
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && go build -tags docs -o $$dir/loadstar ./cmd/loadstar && \
	SOURCE_DATE_EPOCH=$(EPOCH) $$dir/loadstar man $(DIST)/man && cp deploy/man/*.1 $(DIST)/man && \
	for shell in bash zsh fish; do $$dir/loadstar completion $$shell > $(DIST)/completions/loadstar.$$shell || exit 1; done

.PHONY: reference
reference: ## Regenerate docs/reference: commands, agent.yaml, server.yaml, plans, packages
	go run -tags docs ./cmd/loadstar reference > docs/reference/commands.md.new && mv docs/reference/commands.md.new docs/reference/commands.md
	go -C rig run -tags docs ./cmd/loadstar-lab reference > docs/reference/lab.md.new && mv docs/reference/lab.md.new docs/reference/lab.md
	go test ./agent/config -run TestReference -rewrite
	go test ./server/config -run TestReference -rewrite
	go test ./fed/recipe -run TestReference -rewrite
	go test ./series/read -run TestForms -rewrite
	go test ./internal/archtest -run TestReference -rewrite

.PHONY: tables
tables: ## Read tables in formats that users have, including spreadsheets, and print the outcome for each
	go test ./series/read -run TestForms -v

.PHONY: reference-check
reference-check: ## Fail if docs/reference/commands.md or lab.md does not match the commands
	@go run -tags docs ./cmd/loadstar reference | diff -u docs/reference/commands.md - || { echo "run make reference"; exit 1; }
	@go -C rig run -tags docs ./cmd/loadstar-lab reference | diff -u docs/reference/lab.md - || { echo "run make reference"; exit 1; }

.PHONY: release
release: man ## Build a release into dist/: binaries, Debian packages, images, man pages, SBOMs, checksums; PLATFORMS=linux-amd64 for fewer; SIGN_KEY=path signs the checksums with minisign
	VERSION=$(VERSION) EPOCH=$(EPOCH) DIST=$(abspath $(DIST)) PLATFORMS="$(PLATFORMS)" SIGN_KEY="$(SIGN_KEY)" tools/release.sh

.PHONY: reproducible
reproducible: ## Build a release for one platform twice, in two folders, and compare the bytes
	tools/reproducible.sh

.PHONY: package-test
package-test: ## Install the packages in a minimal Debian, run the services, upgrade, remove, and run the image; needs root, mmdebstrap, crun
	cd tools && go test ./package
	tools/package-test.sh

.PHONY: dead-links
dead-links: ## Fail if a link or an anchor in the documentation is dead
	cd tools && go test ./links
	cd tools && go run ./links -root ..

.PHONY: python-test
python-test: build ## Build the wheel, install it in a clean environment, run its tests and its notebook, and compare ONNX models with our forecasts; needs python3-venv, python3-pandas, python3-nbclient, python3-ipykernel, python3-onnx and npm
	tools/python-test.sh

.PHONY: compose-test
compose-test: ## Start the services of deploy/compose.yaml as processes, train a run, and send the queries of Grafana's dashboards to Prometheus; needs postgresql and prometheus
	go -C rig test ./compose -count=1 -timeout 20m -v

.PHONY: helm-test
helm-test: ## Render the Helm chart with three sets of values, and decode every object strictly
	go -C tools/helm test ./...

.PHONY: web-test
web-test: build ## Test the dashboard in a browser, with a real server under load and a real agent; SHORT=1 for two of four combinations of theme and width; needs npm and chromium
	cd web/dashboard && $(NPM_CI) && npm test --silent

.PHONY: drama
drama: build ## Break parts of a real fleet, and check that pages, commands, metrics and log report it within a minute; ONLY=killed,lost for some scenes, SHORT=1 for those that take seconds, CLOCK=1 for wrong clocks (the first build takes minutes); needs npm, chromium, mosquitto and, for a full disk, root
	cd web/dashboard && $(NPM_CI)
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	{ test -z "$(CLOCK)" || export LOADSTAR_CLOCK_BIN=$$(go -C rig run ./chaos -build-clock $$dir); } && \
	cd web/dashboard && ONLY="$(ONLY)" SHORT="$(SHORT)" node test/drama.mjs

.PHONY: screenshots
screenshots: build ## Take docs/pictures/dashboard.webp of a real run on generated data; needs npm and chromium
	cd web/dashboard && $(NPM_CI) && node test/picture.mjs dashboard ../../docs/pictures/dashboard.webp

# make coverage also scores this run.
PICTURED := cambridge-core42-2016-17
.PHONY: forecast-picture
forecast-picture: build ## Draw docs/pictures/forecasts.webp of a run on real data; about a minute; needs the data, npm and chromium
	@export LOADSTAR_DATA=$${LOADSTAR_DATA:-../shared/data}; run=runs/coverage/$(PICTURED); \
	{ test -e $$run/summary.json || bin/loadstar simulate plans/day-ahead.yaml --data datasets/$(PICTURED).yaml --out $$run --quiet --baseline none >/dev/null; } && \
	bin/loadstar report $$run -o $$run/report.html && \
	cd web/dashboard && $(NPM_CI) && node test/picture.mjs forecasts ../../docs/pictures/forecasts.webp ../../$$run/report.html

.PHONY: cross
cross: ## Build the commands without cgo for linux/arm64, linux/arm (v7), darwin/arm64 and windows/amd64; TO="linux/arm" for fewer, OF=./cmd/loadstar-agent for one
	for to in $(or $(TO),linux/arm64 linux/arm darwin/arm64 windows/amd64); do \
		GOOS=$${to%/*} GOARCH=$${to#*/} GOARM=7 go build -o /dev/null $(or $(OF),./cmd/loadstar ./cmd/loadstar-agent) || exit; done

.PHONY: test-arm
test-arm: ## Test the engine on emulated arm64 (NEON) and armv7; needs qemu-user-static
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	for p in $(ARM_PACKAGES); do echo arm64 $$p; echo armv7 $$p; done | xargs -P $$(nproc) -L 1 tools/test-arm.sh $$dir

# Targets are limited by executions, not by time: with a time limit, Go's fuzzer may report its own deadline as a
# failure (golang/go#75804). The numbers are executions per second on two cores.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := nn/kernel:FuzzMatMul:300 nn/kernel:FuzzElementwise:500 nn/safetensors:FuzzRead:20000 nn/safetensors:FuzzOpen:15000 forecast/issue:FuzzState:40 fed/serve:FuzzScaling:5000 fed/serve:FuzzStates:10000 \
	series:FuzzOpenPrepared:1500 metric:FuzzPoint:5000 fed/exact:FuzzSumUnmarshal:10000 fed/aggregate:FuzzFedNorm:10000 \
	internal/config:FuzzDecode:10000 fed/recipe:FuzzRead:2500 series/recognize:FuzzTable:300 series/table:FuzzCSV:2000 series/read:FuzzCSV:300 series/read:FuzzTime:2000 \
	series/read:FuzzParquet:200 series/read:FuzzGreenButton:200 fed/round:FuzzAddSums:8000 fed/round:FuzzReadUpdate:8000 fed/round:FuzzServerState:7000 internal/stateformat:FuzzUnwrap:10000 \
	internal/mtls:FuzzJoinToken:10000 internal/mtls:FuzzParse:2500 server/pki:FuzzSign:1700 agent/identity:FuzzParse:2600 agent/mqtt:FuzzDecode:15000 forecast/calibrate:FuzzState:5000 series/store:FuzzOutlooks:10000 agent/config:FuzzParse:2000 \
	agent/readings:FuzzDocument:200 fed/member:FuzzStatement:1500 keeper:FuzzEnrol:300 keeper:FuzzCheck:300 keeper:FuzzRelease:300
# These targets take minutes to compile for the fuzzer, because they include a database.
FUZZ_HEAVY := server/gateway:FuzzCodec:500 server/gateway:FuzzHandler:350
.PHONY: fuzz
fuzz: ## Fuzz every decoder and kernel, each for about FUZZ_SECONDS
	@set -e; for t in $(FUZZ_TARGETS) $(FUZZ_HEAVY); do \
		package=$${t%%:*}; rate=$${t##*:}; target=$${t#*:}; target=$${target%:*}; \
		go test -run '^$$' -fuzztime $$((rate * $(FUZZ_SECONDS)))x -fuzzminimizetime 20x -fuzz "^$$target$$" "./$$package"; \
	done

# The test binary runs without go test, so that the last line of the output is the result.
.PHONY: simulation
simulation: ## Simulate a fleet under faults, on virtual time, for SEEDS seeds (200); SEED=17 repeats one seed and shrinks its faults; PRIVATE=1 for private runs only
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && go -C rig test -c -o $$dir/simulation ./simulation && \
	$$dir/simulation -test.run 'TestSeeds|TestRepeats' -test.timeout 0 $(if $(SEED),-first $(SEED) -seeds 1,-first $(or $(FIRST),1) -seeds $(or $(SEEDS),200)) $(if $(PRIVATE),-private)

.PHONY: simulation-planted
simulation-planted: ## Plant bugs in the product, and check that the simulation finds each of them within 1,000 seeds; about eight minutes
	go -C rig test -count=1 -timeout 120m -v -run TestPlanted ./simulation -args -planted

CASES ?= 10000
.PHONY: private
private: ## Simulate CASES rounds of random fleets, keepers and a lying server: each sum must be exact or refused, and nothing may leak; JSON=1 for JSON
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && go test -c -o $$dir/keeper ./keeper && $$dir/keeper -test.run 'TestPrivate$$' -test.timeout 0 -cases $(CASES)

.PHONY: private-identity
private-identity: ## Train 20 plans as private plans in the simulator, and six of them in fleets of 20 agents with 200 clients and two keepers, on SQLite, on PostgreSQL and through a region: the weights must equal those without masks; needs PostgreSQL; JSON=1 for JSON
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && go test -c -o $$dir/server ./server && cd server && $$dir/server -test.run 'TestPrivateIdentity$$' -test.timeout 0 -identity

.PHONY: private-planted
private-planted: ## Disable rules of the keeper, and plant bugs in agents: the checker must find each leak within 1,000 cases; half a minute
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && go test -c -o $$dir/keeper ./keeper && $$dir/keeper -test.run TestPrivatePlanted -test.timeout 0

KILLS ?= 40
.PHONY: chaos
chaos: build ## Chaos test: kill processes of a single server and of a cluster at random, KILLS times each, and check the result; FORM=private or private-one for private plans with a keeper; needs PostgreSQL
	for form in $(or $(FORM),one cluster); do go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form $$form -kills $(KILLS) $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS)) || exit 1; done

CUTS ?= 40
.PHONY: power
power: build ## Cut the power of a fleet's machines, which lose unsynced data, CUTS times with a single server and with a cluster; needs PostgreSQL, root and /dev/fuse
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault power -form one -kills $(CUTS) $(if $(SEED),-seed $(SEED))
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault power -form cluster -kills $(CUTS) $(if $(SEED),-seed $(SEED))

.PHONY: full-disk
full-disk: build ## Make the disks of a fleet full or read-only for seconds, TIMES times with a single server and with a cluster; needs PostgreSQL, root and /dev/fuse
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault disk -form one -kills $(TIMES) $(if $(SEED),-seed $(SEED))
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault disk -form cluster -kills $(TIMES) $(if $(SEED),-seed $(SEED))

FLIPS ?= 200
.PHONY: corruption
corruption: build ## Flip FLIPS bits in the files of a stopped fleet, and truncate a fifth as many files: all damage that matters must be detected; needs PostgreSQL
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault corruption -kills $(FLIPS) $(if $(SEED),-seed $(SEED))

.PHONY: foreign
foreign: build ## Kill a server, and use its SQLite ledger in 25 ways with Python, sqlite3 and file commands: afterwards, the server must count correctly or report what is wrong; needs sqlite3 and Python
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fault foreign $(if $(SEED),-seed $(SEED))

FORMS ?= one cluster
.PHONY: chaos-fedsim
chaos-fedsim: build ## Chaos test with data on the server: kill only coordinators, KILLS times with a single server and with a cluster; needs PostgreSQL
	for form in $(FORMS); do go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -fedsim -form $$form -kills $(KILLS) $(if $(SEED),-seed $(SEED)) || exit 1; done

TIMES ?= 50
.PHONY: failover
failover: build ## Break the primary of a PostgreSQL cluster under Patroni TIMES times in six ways, and check the result; HOW=-asynchronous or HOW=-etcd3 for clusters that lose updates; needs PostgreSQL, Patroni, etcd, iptables and root
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form cluster -fault failover$(HOW) -kills $(TIMES) -patience 6m $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS))

JUMPS ?= 12
.PHONY: clocks
clocks: ## Shift the clocks of servers, agents and PostgreSQL by an hour and a year, and check the result; the first build takes minutes; needs PostgreSQL and libfaketime
	go -C rig run ./chaos -form cluster -fault clocks -kills $(JUMPS) -patience 10m $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS))

LINKS ?= 13
.PHONY: links
links: build ## Disturb the links between agents, servers and PostgreSQL in LINKS ways, make the S3 store fail, and check the result; needs PostgreSQL
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form cluster -fault links -kills $(LINKS) -patience 6m $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS))
	$(if $(filter 0,$(S3)),,go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form cluster -fault s3 -kills $(or $(S3),7) -patience 4m $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS)))

AWAY ?= 3m
.PHONY: outages
outages: build ## Stop PostgreSQL for AWAY, and check the result; then simulate an hour without each store on virtual time; needs PostgreSQL
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form cluster -fault outage -kills 2 -for $(AWAY) -patience 10m $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS))
	go -C rig test -count=1 -timeout 60m -v -run TestAway ./simulation -args -away 1h -outages 10

.PHONY: keeper-away
keeper-away: build ## Stop the keeper of private runs for AWAY, such as 10m, and check what a run reports meanwhile, and its weights; needs PostgreSQL
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form private -fault keeper -kills 1 -for $(AWAY) $(if $(SEED),-seed $(SEED)) $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(PATIENCE),-patience $(PATIENCE))

.PHONY: faults
faults: build ## Run short versions of power, full-disk, corruption, foreign, failover, outages, links and keeper-away; about six minutes
	$(MAKE) power CUTS=8
	$(MAKE) full-disk TIMES=3
	$(MAKE) corruption FLIPS=60
	$(MAKE) foreign
	$(MAKE) failover TIMES=2 ROUNDS=4
	go -C rig run ./chaos -bin $(CURDIR)/bin/loadstar -form cluster -fault outage -kills 1 -for 5s -rounds 4
	$(MAKE) links LINKS=3 S3=2 ROUNDS=6
	$(MAKE) keeper-away AWAY=10s ROUNDS=4

.PHONY: attacks
attacks: build ## Carry out the attacks of the security review against the built server; ONLY=C1,H3 for some
	go -C rig run ./attack -bin $(CURDIR)/bin/loadstar $(if $(ONLY),-only $(ONLY))

.PHONY: leaks
leaks: ## Carry out the attacks on readings with a year of real readings and all defaults, and print what they reveal; about half an hour
	LOADSTAR_TEST_LONG=1 go -C rig test ./attack -run 'TestLeaks|TestWhatRemains' -count=1 -v -timeout 0

.PHONY: floods
floods: build ## Measure honest calls during each flood, on SQLite and PostgreSQL
	go -C rig run ./attack -bin $(CURDIR)/bin/loadstar -only H2,H3,H4,H5,L1,L2
	go -C rig run ./attack -bin $(CURDIR)/bin/loadstar -only H2,H3,H4,H5,L1,L2 -postgres

.PHONY: bench-fleet
bench-fleet: build ## Load-test the server with 10,000 simulated agents, and compare it with bare HTTP and bare counting
	bin/loadstar-lab bench fleet

SOAK ?= 1h
.PHONY: soak
soak: build ## Soak-test the server for SOAK: memory, files and goroutines must not grow
	bin/loadstar-lab bench soak --for $(SOAK)

.PHONY: sample
sample: build ## Cut datasets/sample again from the group cambridge-estates; needs the data, in ../shared/data or $$LOADSTAR_DATA
	bin/loadstar data fetch sample --from $${LOADSTAR_DATA:-../shared/data}/cambridge-estates -o datasets

CORE_GROUPS := cambridge-core42-2016-17 hog-core42 robin-core42 resstock-ca-core42 resstock-tx-core42 resstock-vt-core42 sgsc-core19
# The large groups of readings, which are not in the repository.
define DATA_ROOT
export LOADSTAR_DATA=$${LOADSTAR_DATA:-../shared/data}; \
	test -d "$$LOADSTAR_DATA" || { echo "no data in $$LOADSTAR_DATA: get it with bin/loadstar data fetch, and set LOADSTAR_DATA"; exit 1; }
endef

.PHONY: papers
papers: build ## Train the papers' experiments, one after the other; about 24 hours of CPU time, resumable; needs the data
	@$(DATA_ROOT); for p in bose2024 bose2023 song2021 fekri2023 reddi2021; do bin/loadstar-lab reproduce $$p --save || exit 1; done; \
	python3 papers/recompute.py && bin/loadstar-lab reproduce all --verify --write

.PHONY: papers-check
papers-check: build ## Recompute the papers' verdicts, and twenty of them with numpy if it is installed; the last line contains counts
	@if python3 -c 'import numpy' 2>/dev/null; then python3 papers/recompute.py > /dev/null; git diff --exit-code -- papers/recomputed.tsv; fi
	@bin/loadstar-lab reproduce all --verify

.PHONY: pretrained
pretrained: ## Train the model in the binary (fed/serve/generic.f16) on Cambridge and ResStock; about a minute of CPU time; needs the data
	@$(DATA_ROOT); go -C rig build -o $(CURDIR)/bin/ ./pretrain && bin/pretrain train -o fed/serve/generic.f16 && git diff --stat -- fed/serve/generic.f16

PEERS ?= 6
.PHONY: ages
ages: ## Score the model in the binary by clients' days of readings, on groups that were not used for training; ten minutes of CPU time; needs the data and python3-sklearn
	@$(DATA_ROOT); go -C rig build -o $(CURDIR)/bin/ ./pretrain && bin/pretrain ages -peer $(PEERS) sgsc-core19 robin-core42 hog-core42

.PHONY: baselines
baselines: build ## Regenerate docs/reference/baselines.md; needs the data, in ../shared/data or $$LOADSTAR_DATA
	@$(DATA_ROOT); \
	data=$$(printf 'datasets/%s.yaml,' $(CORE_GROUPS)); data=$${data%,}; \
	{ echo "# Baselines: tables"; echo; echo "<!-- Generated by make baselines. -->"; echo; \
	  echo "[Baselines](../baselines.md) explains methods and columns."; \
	  echo; echo "## One step ahead"; bin/loadstar backtest --data $$data --model all --markdown; \
	  echo; echo "## All of the next 24 hours"; bin/loadstar backtest --data $$data --model all --h 24 --markdown; \
	} > docs/reference/baselines.md.new && mv docs/reference/baselines.md.new docs/reference/baselines.md

COMPARISON_SEEDS := 1,2,3
DATA = $$(printf 'datasets/%s.yaml,' $(CORE_GROUPS) | sed 's/,$$//')
.PHONY: comparison
comparison: build ## Regenerate docs/reference/comparison.md: dense, its twins and baselines on seven groups; about an hour on two cores
	@$(DATA_ROOT); \
	compare() { \
	  bin/loadstar compare --data $(DATA) --plan plans/$$1.yaml,plans/$$1-local.yaml,plans/$$1-local-short.yaml,plans/$$1-pooled.yaml,plans/$$1-fl.yaml \
	    --baseline persistence,naive-day,naive-week,rolling-median,rolling-mean,ridge,ridge-rich --peers docs/peers \
	    --subject $$1 --seeds $(or $(SEEDS),$(COMPARISON_SEEDS)) --other-seeds 1 --out runs/comparison/$$1 --markdown; }; \
	{ echo "# Comparison of methods: tables"; echo; echo "<!-- Generated by make comparison. -->"; echo; \
	  echo "[Comparison of methods](../comparison.md) explains methods and columns, and has the dates."; \
	  echo; echo "## The next hour"; compare hour-ahead; \
	  echo; echo "## The next 24 hours"; compare day-ahead; \
	  echo; echo "## Energies, sums and peaks"; \
	  bin/loadstar-lab bench uses --data $(DATA) --runs runs/comparison/day-ahead --seeds $(or $(SEEDS),$(COMPARISON_SEEDS)) --peers docs/peers --weather-errors 1,2,3,yesterday; \
	} > docs/reference/comparison.md.new && mv docs/reference/comparison.md.new docs/reference/comparison.md

.PHONY: steps
steps: build ## Train a plan that forecasts 24 hours on hourly, 30-minute and 15-minute readings, and score baselines: the tables of docs/forecast.md; about ten minutes of CPU
	@export LOADSTAR_DATA=$${LOADSTAR_DATA:-../shared/data}; \
	bin/loadstar compare --data datasets/sgsc-core19.yaml,datasets/sgsc-30min-core19.yaml,datasets/bose2023-ca-sample.yaml \
	  --plan plans/day-ahead.yaml --baseline naive-week,rolling-median,ridge-rich --out runs/steps --markdown

.PHONY: uses
uses: build ## Score forecasts of daily energy, hourly sums and daily peaks on four groups: the table of docs/forecast.md; about ten minutes of CPU; SHORT=1 for seconds on the sample
	@$(if $(SHORT),,$(DATA_ROOT);) tools/uses.sh $(if $(SHORT),short)

.PHONY: coverage
coverage: build ## Score the forecasts of runs on seven groups, with all readings and with 2 % of them removed: error, coverage of P10 to P90, sources; about ten minutes
	@$(DATA_ROOT); \
	for g in $(CORE_GROUPS); do \
	  test -e runs/coverage/$$g/summary.json || bin/loadstar simulate plans/day-ahead.yaml --data datasets/$$g.yaml --out runs/coverage/$$g --quiet --baseline none >/dev/null || exit 1; \
	  for gaps in "" "--remove 2%" "--remove 2% --block 6h" "--remove 2% --block 24h"; do \
	    bin/loadstar backtest --model runs/coverage/$$g --data datasets/$$g.yaml $$gaps || exit 1; \
	  done; \
	done

.PHONY: peers
peers: build ## Measure gradient boosting on the features of dense, with results in docs/peers; takes hours, resumable; needs python3-sklearn and python3-xgboost
	@$(DATA_ROOT); export OMP_NUM_THREADS=1; \
	skill() { bin/loadstar-lab bench skill --data datasets/$$g.yaml --out docs/peers "$$@"; }; \
	for g in $(CORE_GROUPS); do \
	  skill --h 1 --rows 40000 --peer --loss absolute_error --clients 14 && \
	  skill --h 1 --rows 40000 --xgboost --pooled --clients 0 && \
	  skill --h 24 --rows 20000 --peer --loss absolute_error --clients 7 && \
	  skill --h 24 --rows 20000 --xgboost --pooled --clients 20 || exit 1; \
	done; \
	bin/loadstar-lab bench uses --data $(DATA) --runs runs/comparison/day-ahead --seeds 1 --peers docs/peers --peer >/dev/null

.PHONY: pictures
pictures: comparison ## Draw docs/pictures/skill.svg from the comparison
	@$(DATA_ROOT); dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	for t in hour-ahead day-ahead; do \
	  bin/loadstar compare --data $(DATA) --plan plans/$$t.yaml,plans/$$t-local.yaml,plans/$$t-local-short.yaml --baseline ridge-rich --peers docs/peers \
	    --subject $$t --seeds $(or $(SEEDS),$(COMPARISON_SEEDS)) --other-seeds 1 --out runs/comparison/$$t --json > $$dir/$$t.json || exit 1; \
	done; cd tools && go run ./skillchart $$dir/hour-ahead.json $$dir/day-ahead.json > ../docs/pictures/skill.svg

.PHONY: large-fleet
large-fleet: build ## Simulate 10,000 synthetic clients, with 100 in each of 300 rounds, and print time and memory
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
	printf 'name: large\nalgorithm: fedavg\npartition: head\nrounds: 300\nschedule: {cohort: 100}\n' > $$dir/plan.yaml && \
	bin/loadstar data generate --meters 10000 -o $$dir/fleet && \
	bin/loadstar data prepare $$dir/fleet -o $$dir/fleet.prepared && \
	bin/loadstar simulate $$dir/plan.yaml --data $$dir/fleet.prepared --out $$dir/run --baseline none

.PHONY: bench-simulate
bench-simulate: build ## Benchmark the simulator against the bare training engine
	bin/loadstar-lab bench simulate

.PHONY: bench
bench: build ## Benchmark the training engine against PyTorch; needs python3-torch and libopenblas0
	bin/loadstar-lab bench engine --peer
