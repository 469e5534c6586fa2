package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// floor is a set of folders of the repository that may import folders on lower floors, but not
// each other.
type floor struct {
	folders, what string
}

// floors lists the floors, the highest first. docs/architecture.md contains them as a table.
var floors = []floor{
	{"rig", "a separate module that is not part of releases: `loadstar-lab` (papers, benchmarks), the tests of the whole product (`simulation`, `year` and others), and programs that test it (`chaos`, `attack`)"},
	{"cmd", "the programs `loadstar` (`operate`: commands that call a server, and those of a keeper; `demo`, `doctor`; `cli`: what they share) and `loadstar-agent`"},
	{"agent", "training for a server; `live` (forecasts at the client; it chooses the model that each client uses), `config` (agent.yaml), `release` (models that a server has released), `readings`, `mqtt`, `api` (HTTP: readings in, forecasts out), `command` (what both programs' commands share), `state` (what must survive a crash: undecided results, personal layers), `identity`, `audit`"},
	{"keeper", "holds the keys of private runs, checks each request against its rules, and releases the sum of a round's masks once"},
	{"server", "`gateway` (the agents' API: tasks and weights; it checks results, and passes them to the ledger in batches), `coordinator` (drives rounds from the ledger, or relays those of a hub), `keepers` (calls the keepers of private plans, and adds up their answers if a plan has several), `ledger` (only its transactions decide what counts: runs, leases and receipts), `directory` (agents and clients), `sqlstore` (the database below `ledger` and `directory`: SQLite and PostgreSQL, locks, checksums, and the schema in `migrations`, one new file for each change), `blob` (weights and plans), `terms` (shape and bounds of a valid update), `operator` (the operators' API), `web` (the dashboard), `access` (who may call `operator` and `web`), `config` (server.yaml and the flags of `serve`), `pki` (certificates), `examine` (checks a server's settings and state)"},
	{"lab", "`sim` (simulator), `run` (a run's folder), `report`, `score`, `outlook` (forecasts from a run), `backtest`, `explain` (what a plan will do), `experiment`"},
	{"fed", "the federated core, without I/O except in `serve`: `recipe` (plans, registry of algorithms, schedules), `round`, `client`, `aggregate`, `serveropt`, `clientopt`, `localtrain`, `exact` (sums), `limit` (how much one client can change a merge), `policy` (which plans an agent trains or declines), `setup` (prepares a plan for a run), `mask` (masks of private runs: agents add them, keepers sum them), `member` (the messages about masks between agents, servers and keepers); `serve` turns trained plans into forecasts"},
	{"forecast", "models, partitions, scoring, baselines; `issue` (forecasts that people use, and the source of each step), `calibrate` (the width of intervals)"},
	{"series", "readings, weather and `feature`s; `read` (files with their own layout), `table` (formats of tables), `recognize` (finds out what a table's columns contain), `write`, `store` (an agent's readings), `source` (gets public data), `quality`, `synth` (generates data); from lower floors, the packages in `series` import only `internal`"},
	{"internal", "small libraries, and what tests share (`testkit`)"},
	{"metric nn proto plans docs", "metrics, the training engine, the wire protocol, an example for every algorithm, the runbooks"},
}

// sameFloor lists folders that are on the floor of the folder above them in floors.
var sameFloor = []string{"keeper", "server", "lab"}

// height returns the number of a package's floor, counted from the top, and the package's top
// folder.
func height(path string) (n int, folder string, ok bool) {
	folder, _, _ = strings.Cut(path, "/")
	for _, f := range floors {
		if !slices.Contains(sameFloor, f.folders) {
			n++
		}
		if slices.Contains(strings.Fields(f.folders), folder) {
			return n, folder, true
		}
	}
	return 0, folder, false
}

// pkg lists the permitted imports of a package.
type pkg struct {
	may string // our packages; "..." means all packages on lower floors and in the package's own folder
	// external lists the modules outside the standard library that the package may import. Each
	// of them becomes part of a binary that users deploy.
	external string
}

// table is the table of packages. A package may import the packages in its line, which are on
// lower floors or in its own folder. docs/reference/packages.md is generated from the table.
var table = map[string]pkg{
	"rig/paper":            {may: "internal/config internal/disk internal/textfmt lab/experiment lab/report", external: "github.com/expr-lang/expr go.yaml.in/yaml/v3"},
	"rig/year":             {may: "agent/live forecast/issue nn/kernel series series/store"},
	"rig/bench":            {may: "forecast nn nn/kernel series"},
	"rig/bench/engine":     {may: "forecast internal/proc nn/kernel rig/bench series", external: "golang.org/x/sys"},
	"rig/bench/simulate":   {may: "fed fed/recipe lab/sim nn/kernel rig/bench"},
	"rig/bench/skill":      {may: "forecast lab/outlook metric nn/kernel rig/bench series series/feature"},
	"rig/bench/fleet":      {may: "fed/mask fed/member fed/recipe fed/round keeper internal/mtls internal/proc internal/testkit proto/loadstar/v1 rig/bench rig/fleetload rig/product server/directory server/gateway server/ledger server/terms", external: "golang.org/x/sys google.golang.org/protobuf"},
	"rig/pretrain":         {may: "fed/recipe fed/serve forecast forecast/issue nn/kernel rig/bench/skill series series/feature series/read", external: "golang.org/x/sync"},
	"rig/attack":           {may: "agent fed fed/mask fed/member fed/policy fed/recipe fed/round fed/setup internal/mtls internal/protocol internal/testkit internal/testkit/pgtest metric nn/kernel proto/loadstar/v1 rig/leak rig/product series server/terms", external: "connectrpc.com/connect github.com/jackc/pgx/v5 github.com/johannesboyne/gofakes3 github.com/oauth2-proxy/mockoidc github.com/parquet-go/parquet-go golang.org/x/sync google.golang.org/protobuf modernc.org/sqlite"},
	"rig/simulation":       {},
	"rig/chaos":            {may: "agent/identity agent/state fed/member internal/mtls internal/protocol internal/testkit internal/testkit/pgtest keeper rig/faultfs rig/patroni rig/product server server/blob server/keepers server/ledger server/pki server/sqlstore", external: "github.com/jackc/pgx/v5 github.com/johannesboyne/gofakes3 modernc.org/sqlite"},
	"rig/fleetload":        {may: "fed/mask fed/member fed/round internal/mtls internal/protocol proto/loadstar/v1 server/terms", external: "golang.org/x/sync google.golang.org/protobuf"},
	"rig/leak":             {may: "agent fed fed/client fed/policy fed/recipe fed/setup forecast metric nn nn/kernel series"},
	"rig/faultfs":          {may: "internal/proc", external: "github.com/hanwen/go-fuse/v2 golang.org/x/sys"},
	"rig/compose":          {},
	"rig/product":          {may: "internal/proc"},
	"rig/patroni":          {may: "internal/proc internal/testkit/pgtest"},
	"rig/cmd/loadstar-lab": {may: "cmd/loadstar/cli forecast lab/experiment lab/outlook nn/kernel rig/bench rig/bench/engine rig/bench/fleet rig/bench/simulate rig/bench/skill rig/paper series series/read series/source", external: "github.com/spf13/cobra github.com/spf13/pflag"},

	"cmd/loadstar":         {may: "...", external: "connectrpc.com/connect github.com/spf13/cobra github.com/spf13/pflag github.com/parquet-go/parquet-go github.com/vbauerster/mpb golang.org/x/sys google.golang.org/protobuf"},
	"cmd/loadstar/cli":     {may: "fed fed/recipe internal/config internal/textfmt lab/sim series series/read", external: "github.com/spf13/cobra github.com/spf13/pflag github.com/vbauerster/mpb golang.org/x/sys google.golang.org/protobuf"},
	"cmd/loadstar/operate": {may: "cmd/loadstar/cli fed/recipe fed/round internal/config internal/disk internal/mtls internal/protocol internal/service internal/textfmt keeper proto/loadstar/v1 server/pki", external: "connectrpc.com/connect github.com/spf13/cobra github.com/spf13/pflag go.yaml.in/yaml/v3 golang.org/x/sync google.golang.org/protobuf"},
	"cmd/loadstar-agent":   {may: "agent/command series"},

	"server":             {may: "fed internal/backoff internal/connlimit internal/disk internal/finding internal/service proto/loadstar/v1 server/access server/blob server/coordinator server/directory server/examine server/gateway server/keepers server/ledger server/operator server/pki server/sqlstore server/terms server/web", external: "connectrpc.com/connect github.com/prometheus/client_golang golang.org/x/sync"},
	"server/gateway":     {may: "fed/exact fed/mask fed/member fed/round internal/backoff internal/connlimit internal/head internal/mtls internal/protocol proto/loadstar/v1 series/quality server/access server/blob server/directory server/keepers server/ledger server/pki server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/coordinator": {may: "fed fed/client fed/limit fed/mask fed/recipe fed/round fed/setup internal/backoff internal/protocol proto/loadstar/v1 server/blob server/directory server/keepers server/ledger server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/operator":    {may: "fed fed/policy fed/recipe internal/mtls internal/textfmt plans proto/loadstar/v1 series/quality server/access server/directory server/ledger server/pki server/terms", external: "connectrpc.com/connect google.golang.org/protobuf"},
	"server/terms":       {may: "fed fed/client fed/exact fed/limit fed/member fed/recipe fed/round fed/setup internal/stateformat nn/kernel proto/loadstar/v1 series", external: "google.golang.org/protobuf"},
	"server/ledger":      {may: "internal/backoff internal/head server/directory server/sqlstore"},
	"server/directory":   {may: "server/sqlstore"},
	"server/sqlstore":    {may: "internal/backoff internal/disk internal/finding", external: "github.com/jackc/pgx/v5 github.com/pressly/goose/v3 modernc.org/sqlite"},
	"server/blob":        {may: "internal/disk", external: "github.com/minio/minio-go/v7 golang.org/x/sync"},
	"server/access":      {may: "internal/connlimit proto/loadstar/v1 server/directory server/pki", external: "connectrpc.com/connect github.com/hashicorp/golang-lru github.com/prometheus/client_golang golang.org/x/time"},
	"server/web":         {may: "docs internal/connlimit internal/service internal/webui proto/loadstar/v1 server/access server/ledger server/operator", external: "connectrpc.com/connect github.com/coreos/go-oidc/v3 golang.org/x/oauth2 google.golang.org/protobuf"},
	"server/examine":     {may: "internal/backoff internal/disk internal/finding internal/mtls server/blob server/ledger server/pki", external: "github.com/prometheus/client_golang"},
	"server/keepers":     {may: "fed/mask fed/member internal/backoff internal/mtls proto/loadstar/v1", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/config":      {may: "internal/config server/keepers", external: "go.yaml.in/yaml/v3"},
	"server/pki":         {may: "internal/disk internal/mtls", external: "filippo.io/age"},

	"keeper": {may: "fed/mask fed/member internal/boltfile internal/config internal/connlimit internal/disk internal/mtls internal/service proto/loadstar/v1", external: "connectrpc.com/connect go.etcd.io/bbolt google.golang.org/protobuf"},

	"agent":          {may: "agent/audit agent/release agent/state fed fed/client fed/mask fed/member fed/policy fed/recipe fed/round fed/serve fed/setup forecast internal/backoff internal/head internal/protocol nn nn/kernel proto/loadstar/v1 series series/feature", external: "connectrpc.com/connect google.golang.org/protobuf"},
	"agent/audit":    {may: "fed fed/client fed/setup metric nn/kernel series"},
	"agent/state":    {may: "internal/boltfile internal/mtls", external: "go.etcd.io/bbolt"},
	"agent/identity": {may: "internal/backoff internal/head internal/mtls internal/protocol proto/loadstar/v1", external: "connectrpc.com/connect"},
	"agent/release":  {},
	"agent/readings": {may: "internal/service internal/stateformat series series/openmeteo series/store", external: "github.com/fsnotify/fsnotify"},
	"agent/mqtt":     {may: "agent/config agent/readings forecast/issue", external: "github.com/eclipse/paho.golang"},
	"agent/config":   {may: "fed/policy internal/config series/openmeteo"},
	"agent/command":  {may: "agent agent/api agent/audit agent/config agent/identity agent/live agent/mqtt agent/readings fed/policy fed/recipe fed/serve forecast/issue internal/backoff internal/boltfile internal/disk internal/finding internal/service internal/textfmt nn/kernel series series/openmeteo series/store"},
	"agent/live":     {may: "agent/release fed/recipe fed/serve forecast/calibrate forecast/issue internal/boltfile internal/stateformat nn/kernel series series/quality series/store", external: "go.etcd.io/bbolt"},
	"agent/api":      {may: "agent/audit agent/live agent/readings forecast/issue internal/connlimit internal/disk internal/service internal/textfmt internal/webui metric series/store"},

	"lab/experiment": {may: "fed fed/recipe forecast internal/config internal/disk internal/textfmt lab/backtest lab/run lab/sim metric nn/kernel series", external: "go.yaml.in/yaml/v3 golang.org/x/sync"},
	"lab/backtest":   {may: "fed forecast internal/textfmt lab/run metric series"},
	"lab/explain":    {may: "fed fed/recipe fed/setup internal/proc internal/textfmt lab/sim nn nn/kernel series"},
	"lab/sim":        {may: "fed fed/client fed/exact fed/limit fed/mask fed/recipe fed/round fed/serve fed/setup forecast forecast/issue internal/disk internal/proc internal/stateformat lab/run metric nn/kernel series series/feature", external: "golang.org/x/sync"},
	"lab/report":     {may: "internal/disk internal/textfmt lab/run metric series", external: "go.yaml.in/yaml/v3"},
	"lab/run":        {may: "internal/disk internal/textfmt metric", external: "github.com/parquet-go/parquet-go golang.org/x/sys"},
	"lab/score":      {may: "forecast/issue internal/textfmt lab/outlook lab/report lab/run metric series series/table"},
	"lab/outlook":    {may: "fed/recipe fed/serve forecast/issue internal/disk internal/textfmt lab/run metric nn nn/kernel nn/safetensors series", external: "github.com/guptarohit/asciigraph github.com/parquet-go/parquet-go golang.org/x/sync google.golang.org/protobuf"},

	"fed/policy":     {may: "fed fed/member fed/recipe internal/config"},
	"fed/setup":      {may: "fed fed/client fed/limit fed/recipe fed/round nn/kernel series"},
	"fed/serve":      {may: "fed fed/client fed/recipe forecast forecast/issue internal/disk internal/stateformat nn nn/kernel nn/safetensors series series/feature"},
	"fed/recipe":     {may: "fed fed/aggregate fed/clientopt fed/exact fed/localtrain fed/serveropt forecast internal/config nn nn/kernel series series/feature", external: "go.yaml.in/yaml/v3"},
	"fed/round":      {may: "fed fed/exact fed/limit fed/mask internal/stateformat nn"},
	"fed/mask":       {},
	"fed/member":     {may: "fed fed/mask proto/loadstar/v1", external: "google.golang.org/protobuf"},
	"fed/limit":      {may: "fed internal/stateformat"},
	"fed/client":     {may: "fed fed/limit forecast nn nn/kernel series"},
	"fed/aggregate":  {may: "fed internal/stateformat"},
	"fed/serveropt":  {may: "fed internal/stateformat"},
	"fed/clientopt":  {may: "fed nn/kernel"},
	"fed/localtrain": {may: "fed nn nn/kernel"},
	"fed":            {may: "fed/exact internal/textfmt", external: "go.yaml.in/yaml/v3"},
	"fed/exact":      {},

	"forecast":           {may: "forecast/calibrate metric nn nn/kernel nn/safetensors series", external: "golang.org/x/sync"},
	"forecast/calibrate": {may: "internal/stateformat"},
	"forecast/issue":     {may: "forecast/calibrate internal/stateformat series"},

	"nn":             {may: "nn/kernel"},
	"nn/kernel":      {external: "golang.org/x/sys"},
	"nn/safetensors": {},
	"nn/nntest":      {may: "nn nn/kernel"},

	"series":           {may: "internal/disk"},
	"series/feature":   {may: "series", external: "github.com/rickar/cal/v2"},
	"series/store":     {may: "internal/boltfile series", external: "go.etcd.io/bbolt"},
	"series/read":      {may: "internal/config internal/textfmt series series/feature series/recognize series/synth series/table", external: "go.yaml.in/yaml/v3 golang.org/x/text"},
	"series/recognize": {may: "series/table", external: "golang.org/x/text"},
	"series/table":     {may: "series", external: "github.com/klauspost/compress github.com/parquet-go/parquet-go github.com/xuri/excelize/v2 golang.org/x/text"},
	"series/openmeteo": {may: "internal/backoff"},
	"series/quality":   {may: "internal/textfmt series"},
	"series/source":    {may: "series/table", external: "github.com/klauspost/compress"},
	"series/synth":     {},
	"series/write":     {may: "internal/disk internal/textfmt series series/read", external: "github.com/parquet-go/parquet-go"},

	"internal/service": {},
	"metric":           {},
	"plans":            {},

	"internal/stateformat": {},

	"proto/loadstar/v1": {external: "connectrpc.com/connect google.golang.org/protobuf"},

	"internal/archtest":       {},
	"cmd/loadstar/demo":       {may: "agent agent/command agent/config agent/identity agent/live agent/release fed/recipe fed/serve forecast forecast/issue internal/mtls internal/proc lab/sim nn/kernel proto/loadstar/v1 series series/synth server server/web", external: "golang.org/x/sync google.golang.org/protobuf"},
	"cmd/loadstar/doctor":     {may: "internal/disk internal/finding internal/mtls internal/service nn/kernel"},
	"internal/disk":           {may: "internal/finding", external: "golang.org/x/sys"},
	"internal/finding":        {},
	"internal/backoff":        {},
	"docs":                    {},
	"internal/boltfile":       {may: "internal/disk", external: "go.etcd.io/bbolt"},
	"internal/webui":          {},
	"internal/connlimit":      {external: "github.com/hashicorp/golang-lru golang.org/x/time"},
	"internal/textfmt":        {},
	"internal/config":         {may: "internal/textfmt", external: "go.yaml.in/yaml/v3"},
	"internal/head":           {may: "internal/mtls"},
	"internal/mtls":           {may: "internal/disk"},
	"internal/proc":           {external: "golang.org/x/sys"},
	"internal/testkit":        {may: "internal/finding internal/stateformat"},
	"internal/testkit/pgtest": {may: "internal/proc internal/testkit", external: "go.uber.org/goleak"},
	"internal/protocol":       {may: "proto/loadstar/v1", external: "connectrpc.com/connect google.golang.org/protobuf"},
}

// testOnly lists the packages that only tests and the rig may import.
var testOnly = []string{"nn/nntest", "internal/archtest", "internal/testkit", "internal/testkit/pgtest"}

const module = "loadstar"

type goPackage struct {
	ImportPath, Doc string
	Imports         []string
}

// packages lists the packages of the product and of the rig with their imports, for one CPU
// architecture.
func packages(t *testing.T, arch string) []goPackage {
	t.Helper()
	root := filepath.Join("..", "..")
	return append(list(t, arch, filepath.Join(root, "rig")), list(t, arch, root)...)
}

// list lists the packages of the module in a folder.
func list(t *testing.T, arch, dir string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module+"/")
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "arm"} {
		t.Run(arch, func(t *testing.T) { checkImports(t, packages(t, arch)) })
	}
}

func checkImports(t *testing.T, all []goPackage) {
	seen := map[string]bool{}
	for _, p := range all {
		r, ok := table[p.ImportPath]
		if !ok {
			t.Errorf("%s is not in the table: list what it may import in archtest_test.go, and run make reference", p.ImportPath)
			continue
		}
		if _, folder, ok := height(p.ImportPath); !ok {
			t.Errorf("%s: the folder %s is on no floor: add it to floors in archtest_test.go, and run make reference", p.ImportPath, folder)
			continue
		}
		seen[p.ImportPath] = true
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
				if err := checkImport(p.ImportPath, r, ours); err != nil {
					t.Error(err)
				}
			} else if strings.Contains(strings.Split(imp, "/")[0], ".") {
				if !slices.ContainsFunc(strings.Fields(r.external), func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") }) {
					t.Errorf("%s imports %s, which is not in its list of external modules: remove the import or add the module to the table", p.ImportPath, imp)
				}
			}
		}
	}
	for path := range table {
		if !seen[path] {
			t.Errorf("%s is in the table but does not exist: remove its line in archtest_test.go, and run make reference", path)
		}
	}
}

func checkImport(from string, r pkg, to string) error {
	above, folder, _ := height(from)
	below, other, _ := height(to)
	switch {
	case slices.Contains(testOnly, to) && !slices.Contains(testOnly, from) && folder != "rig":
		return fmt.Errorf("%s imports %s, which only tests and the rig may import", from, to)
	case folder != other && below <= above:
		return fmt.Errorf("%s imports %s: a folder may import only folders of lower floors", from, to)
	case r.may != "..." && !slices.Contains(strings.Fields(r.may), to):
		return fmt.Errorf("%s imports %s: the table allows only %q", from, to, r.may)
	}
	return nil
}

// TestCheckImport checks that forbidden imports are detected.
func TestCheckImport(t *testing.T) {
	everything := pkg{may: "..."}
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"cmd/loadstar", "server/gateway", true},
		{"server/gateway", "server/ledger", true},
		{"internal/mtls", "internal/atomicfile", true},
		{"rig/chaos", "nn/nntest", true},
		{"server/gateway", "agent", false},        // both are on the same floor
		{"internal/mtls", "series", false},        // upwards
		{"cmd/loadstar", "rig/product", false},    // the product must not import the rig
		{"cmd/loadstar", "nn/nntest", false},      // only for tests
		{"internal/testkit", "agent/live", false}, // upwards, in a package for tests
	} {
		if err := checkImport(c.from, everything, c.to); (err == nil) != c.ok {
			t.Errorf("%s imports %s: %v", c.from, c.to, err)
		}
	}
	if checkImport("cmd/loadstar", pkg{may: "server"}, "agent") == nil {
		t.Error("an import that is not in the list is allowed")
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t, "amd64") {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "regenerate docs/reference/packages.md and the table in docs/architecture.md")

// TestReference checks that the documents match floors, table and the package comments.
func TestReference(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	same(t, filepath.Join(docs, "reference", "packages.md"), func(string) string { return reference(packages(t, "amd64")) })
	same(t, filepath.Join(docs, "architecture.md"), func(page string) string {
		const begin, end = "<!-- begin: floors, from internal/archtest -->\n", "<!-- end: floors -->"
		from, rest, ok := strings.Cut(page, begin)
		_, to, also := strings.Cut(rest, end)
		if !ok || !also {
			t.Fatalf("docs/architecture.md has no %q and %q", begin, end)
		}
		return from + begin + floorsTable() + end + to
	})
}

// same checks that a page equals the result that want returns for it, or writes the result to
// the page.
func same(t *testing.T, path string, want func(page string) string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := want(string(page))
	switch {
	case text == string(page):
	case !*rewrite:
		t.Errorf("%s is not that of the packages: run make reference", path)
	default:
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func floorsTable() string {
	var b strings.Builder
	b.WriteString("| floor | folder | what belongs there |\n|---|---|---|\n")
	for _, f := range floors {
		n, _, _ := height(strings.Fields(f.folders)[0])
		lowest, _, _ := height("docs")
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", lowest+1-n, strings.ReplaceAll(f.folders, " ", "`, `"), f.what)
	}
	return b.String()
}

// reference returns docs/reference/packages.md: the packages of each floor, the highest first, with
// the first sentence of their comments.
func reference(all []goPackage) string {
	var b strings.Builder
	b.WriteString(`# Packages

<!-- Generated by make reference from internal/archtest and the package comments. Change these instead. -->

[Architecture](../architecture.md) explains the floors. A package imports only what its row lists, and never from a higher floor.
` + "`internal/archtest`" + ` tests this, and also which external modules each package may import.
`)
	for _, f := range floors {
		for folder := range strings.FieldsSeq(f.folders) {
			fmt.Fprintf(&b, "\n## %s\n\n| package | purpose | may import |\n|---|---|---|\n", folder)
			for _, p := range all {
				if _, own, _ := height(p.ImportPath); own != folder {
					continue
				}
				may := strings.Join(strings.Fields(table[p.ImportPath].may), ", ")
				switch may {
				case "...":
					may = "everything below"
				case "":
					may = "-"
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.ImportPath, purpose(p.Doc), may)
			}
		}
	}
	return b.String()
}

// purpose returns the first sentence of a package comment without the words with which all
// package comments begin.
func purpose(doc string) string {
	words := strings.Fields(strings.TrimSuffix(doc, "."))
	if len(words) > 2 && (words[0] == "Package" || words[0] == "Command") {
		words = words[2:]
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", "\\|")
}
