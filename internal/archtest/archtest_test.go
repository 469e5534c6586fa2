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

// pkg says which layer a package belongs to and what it may import.
type pkg struct {
	layer int
	may   string // the module's packages that it may import; "..." means its layer and below
	// external lists the modules outside the standard library that it may
	// import. Each of them becomes part of a binary that users deploy.
	external string
}

// layers is the table of packages. A package may import what its line lists: packages of lower
// layers and of its own. docs/reference/packages.md is generated from it.
var layers = map[string]pkg{
	"cmd/loadstar":         {layer: 5, may: "...", external: "connectrpc.com/connect github.com/spf13/cobra github.com/spf13/pflag github.com/parquet-go/parquet-go github.com/vbauerster/mpb golang.org/x/sys google.golang.org/protobuf"},
	"cmd/loadstar/cli":     {layer: 5, may: "docs fed fed/recipe internal/config internal/csvcell internal/nearby series series/read", external: "github.com/spf13/cobra github.com/spf13/pflag github.com/vbauerster/mpb golang.org/x/sys google.golang.org/protobuf"},
	"cmd/loadstar/bench":   {layer: 5, may: "cmd/loadstar/cli forecast internal/bench internal/bench/engine internal/bench/fleet internal/bench/simulate internal/bench/skill lab/outlook nn/kernel series", external: "github.com/spf13/cobra github.com/spf13/pflag"},
	"cmd/loadstar/operate": {layer: 5, may: "cmd/loadstar/cli fed/recipe fed/round internal/agentapi internal/atomicfile internal/config internal/contexts internal/mtls proto/loadstar/v1 server/pki", external: "connectrpc.com/connect github.com/spf13/cobra github.com/spf13/pflag google.golang.org/protobuf"},
	"cmd/loadstar/keeper":  {layer: 5, may: "cmd/loadstar/cli internal/atomicfile internal/port internal/sdnotify keeper", external: "github.com/spf13/cobra golang.org/x/sync"},
	"cmd/loadstar-agent":   {layer: 5, may: "agent agent/command agent/identity agent/mqtt fed/policy internal/sdnotify nn/kernel series"},

	"server":             {layer: 4, may: "internal/atomicfile internal/backoff internal/connlimit internal/filelock internal/finding internal/graceful internal/port proto/loadstar/v1 server/access server/blob server/coordinator server/examine server/gateway server/keepers server/ledger server/limitlog server/operator server/owndata server/pki server/region server/terms server/web", external: "connectrpc.com/connect github.com/prometheus/client_golang golang.org/x/sync"},
	"server/gateway":     {layer: 4, may: "fed/exact fed/mask fed/round internal/backoff internal/connlimit internal/head internal/jointoken internal/protocol proto/loadstar/v1 series/quality server/access server/blob server/keepers server/ledger server/limitlog server/pki server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/limitlog":    {layer: 4, may: "internal/connlimit", external: "github.com/hashicorp/golang-lru github.com/prometheus/client_golang golang.org/x/time"},
	"server/coordinator": {layer: 4, may: "fed fed/client fed/limit fed/mask fed/recipe fed/round fed/setup internal/backoff internal/stateformat/format0 proto/loadstar/v1 server/blob server/keepers server/ledger server/owndata server/terms", external: "github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/region":      {layer: 4, may: "fed/round internal/agentapi internal/backoff internal/protocol proto/loadstar/v1 server/blob server/ledger server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/operator":    {layer: 4, may: "fed fed/policy fed/recipe internal/jointoken proto/loadstar/v1 server/access server/ledger server/pki server/terms series/quality", external: "connectrpc.com/connect google.golang.org/protobuf"},
	"server/terms":       {layer: 4, may: "fed fed/exact fed/limit fed/member fed/recipe fed/round fed/setup proto/loadstar/v1 series server/owndata", external: "google.golang.org/protobuf"},
	"server/owndata":     {layer: 4, may: "fed fed/client fed/recipe fed/setup internal/stateformat nn/kernel series"},
	"server/ledger":      {layer: 4, may: "internal/backoff internal/disk internal/finding internal/head", external: "github.com/jackc/pgx/v5 github.com/pressly/goose/v3 modernc.org/sqlite"},
	"server/blob":        {layer: 4, may: "internal/atomicfile", external: "github.com/minio/minio-go/v7 golang.org/x/sync"},
	"server/access":      {layer: 4, may: "proto/loadstar/v1 server/ledger server/pki", external: "connectrpc.com/connect"},
	"server/web":         {layer: 4, may: "docs internal/connlimit internal/graceful internal/port internal/webui proto/loadstar/v1 server/access server/ledger server/limitlog server/operator", external: "connectrpc.com/connect github.com/coreos/go-oidc/v3 github.com/prometheus/client_golang golang.org/x/oauth2 google.golang.org/protobuf"},
	"server/examine":     {layer: 4, may: "internal/atomicfile internal/backoff internal/disk internal/finding internal/mtls server/blob server/ledger server/pki", external: "github.com/prometheus/client_golang"},
	"server/keepers":     {layer: 4, may: "fed/mask fed/member internal/backoff internal/mtls proto/loadstar/v1", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/config":      {layer: 4, may: "internal/config server/keepers", external: "go.yaml.in/yaml/v3"},
	"server/pki":         {layer: 4, may: "internal/atomicfile internal/filelock internal/jointoken internal/mtls", external: "filippo.io/age"},

	"keeper": {layer: 4, may: "fed/mask fed/member internal/atomicfile internal/boltfile internal/config internal/connlimit internal/graceful internal/mtls proto/loadstar/v1", external: "connectrpc.com/connect go.etcd.io/bbolt google.golang.org/protobuf"},

	"agent":          {layer: 4, may: "agent/audit agent/release agent/state fed fed/client fed/mask fed/member fed/policy fed/recipe fed/round fed/serve fed/setup forecast internal/backoff internal/head internal/protocol nn nn/kernel proto/loadstar/v1 series series/feature", external: "connectrpc.com/connect google.golang.org/protobuf"},
	"agent/audit":    {layer: 4, may: "fed fed/client fed/setup metric nn/kernel series"},
	"agent/state":    {layer: 4, may: "internal/boltfile internal/mtls", external: "go.etcd.io/bbolt"},
	"agent/identity": {layer: 4, may: "internal/backoff internal/head internal/jointoken internal/mtls internal/protocol proto/loadstar/v1", external: "connectrpc.com/connect"},
	"agent/release":  {layer: 4},
	"agent/readings": {layer: 4, may: "internal/problem internal/stateformat series series/store", external: "github.com/fsnotify/fsnotify"},
	"agent/mqtt":     {layer: 4, may: "agent/config agent/readings forecast/issue", external: "github.com/eclipse/paho.golang"},
	"agent/config":   {layer: 4, may: "fed/policy internal/config"},
	"agent/command":  {layer: 4, may: "agent agent/api agent/audit agent/config agent/identity agent/live agent/mqtt agent/readings fed/generic fed/recipe fed/serve forecast/issue internal/boltfile internal/sdnotify nn/kernel series series/store"},
	"agent/live":     {layer: 4, may: "agent/release fed/recipe fed/serve forecast/calibrate forecast/drift forecast/issue internal/boltfile internal/stateformat nn/kernel series series/quality series/store", external: "go.etcd.io/bbolt"},
	"agent/api":      {layer: 4, may: "agent/audit agent/live agent/readings forecast/issue internal/atomicfile internal/connlimit internal/csvcell internal/graceful internal/port internal/problem internal/webui metric series/store"},

	"lab/experiment": {layer: 4, may: "fed fed/recipe forecast internal/atomicfile internal/config lab/backtest lab/run lab/sim metric nn/kernel series", external: "go.yaml.in/yaml/v3 golang.org/x/sync"},
	"lab/backtest":   {layer: 4, may: "fed forecast lab/run metric series"},
	"lab/explain":    {layer: 4, may: "fed fed/recipe internal/cputime lab/kept nn nn/kernel series"},
	"lab/paper":      {layer: 4, may: "internal/atomicfile internal/config lab/experiment lab/report", external: "github.com/expr-lang/expr go.yaml.in/yaml/v3"},
	"lab/sim":        {layer: 4, may: "fed fed/client fed/exact fed/limit fed/recipe fed/round fed/serve fed/setup forecast forecast/issue internal/atomicfile internal/cputime internal/proc internal/stateformat internal/stateformat/format0 lab/kept lab/run metric nn/kernel series series/feature", external: "golang.org/x/sync"},
	"lab/kept":       {layer: 4, may: "internal/atomicfile internal/filelock internal/mmap internal/stateformat", external: "golang.org/x/sync"},
	"lab/report":     {layer: 4, may: "internal/atomicfile lab/run metric series", external: "go.yaml.in/yaml/v3"},
	"lab/run":        {layer: 4, may: "internal/atomicfile internal/csvcell internal/filelock metric", external: "github.com/parquet-go/parquet-go golang.org/x/sys"},
	"lab/score":      {layer: 4, may: "forecast/issue lab/outlook lab/report lab/run metric series series/table series/table/parquet"},
	"lab/outlook":    {layer: 4, may: "fed/recipe fed/serve forecast/issue internal/atomicfile lab/run metric nn/kernel nn/onnx nn/safetensors series", external: "github.com/guptarohit/asciigraph github.com/parquet-go/parquet-go golang.org/x/sync"},

	"fed/policy":     {layer: 3, may: "fed fed/member fed/recipe internal/config"},
	"fed/setup":      {layer: 3, may: "fed fed/client fed/limit fed/recipe fed/round nn/kernel series"},
	"fed/generic":    {layer: 3, may: "fed fed/recipe fed/serve nn/kernel"},
	"fed/serve":      {layer: 3, may: "fed fed/client fed/recipe forecast forecast/issue internal/atomicfile internal/stateformat nn nn/kernel nn/safetensors series series/feature"},
	"fed/recipe":     {layer: 3, may: "fed fed/aggregate fed/clientopt fed/exact fed/localtrain fed/schedule fed/serveropt forecast internal/config nn nn/kernel series series/feature", external: "go.yaml.in/yaml/v3"},
	"fed/round":      {layer: 3, may: "fed fed/exact fed/limit fed/mask internal/stateformat nn"},
	"fed/limit":      {layer: 3, may: "fed internal/stateformat"},
	"fed/client":     {layer: 3, may: "fed fed/limit forecast nn nn/kernel series"},
	"fed/aggregate":  {layer: 3, may: "fed internal/stateformat"},
	"fed/serveropt":  {layer: 3, may: "fed internal/stateformat"},
	"fed/schedule":   {layer: 3, may: "fed"},
	"fed/clientopt":  {layer: 3, may: "fed nn/kernel"},
	"fed/localtrain": {layer: 3, may: "fed nn nn/kernel"},
	"fed":            {layer: 3, may: "fed/exact", external: "go.yaml.in/yaml/v3"},
	"fed/exact":      {layer: 3},
	"fed/mask":       {layer: 3},
	"fed/member":     {layer: 3, may: "fed fed/mask proto/loadstar/v1", external: "google.golang.org/protobuf"},

	"forecast":           {layer: 2, may: "forecast/calibrate nn nn/kernel nn/safetensors series metric", external: "golang.org/x/sync"},
	"forecast/calibrate": {layer: 2, may: "internal/stateformat"},
	"forecast/drift":     {layer: 2, may: "internal/stateformat"},
	"forecast/issue":     {layer: 2, may: "forecast/calibrate internal/stateformat series"},

	"nn":             {layer: 1, may: "nn/kernel"},
	"nn/kernel":      {layer: 1, external: "golang.org/x/sys"},
	"nn/safetensors": {layer: 1},
	"nn/onnx":        {layer: 1, may: "nn", external: "google.golang.org/protobuf"},
	"nn/nntest":      {layer: 1, may: "nn nn/kernel"},

	"series":               {layer: 1, may: "internal/atomicfile internal/mmap"},
	"series/feature":       {layer: 1, may: "series series/holiday"},
	"series/store":         {layer: 1, may: "internal/boltfile series", external: "go.etcd.io/bbolt"},
	"series/holiday":       {layer: 1, external: "github.com/rickar/cal/v2"},
	"series/read":          {layer: 1, may: "internal/config series series/holiday series/recognize series/synth series/table series/table/parquet series/table/sheet", external: "go.yaml.in/yaml/v3 golang.org/x/text"},
	"series/recognize":     {layer: 1, may: "series/table", external: "golang.org/x/text"},
	"series/table":         {layer: 1, may: "series", external: "github.com/klauspost/compress golang.org/x/text"},
	"series/table/parquet": {layer: 1, may: "series/table", external: "github.com/parquet-go/parquet-go"},
	"series/table/sheet":   {layer: 1, external: "github.com/xuri/excelize/v2"},
	"series/quality":       {layer: 1, may: "series"},
	"series/quality/text":  {layer: 1, may: "series series/quality"},
	"series/source":        {layer: 1, may: "series/table", external: "github.com/klauspost/compress"},
	"series/synth":         {layer: 1},
	"series/write":         {layer: 1, may: "internal/atomicfile internal/csvcell series series/read", external: "github.com/parquet-go/parquet-go"},

	"metric": {layer: 1},

	"internal/stateformat":         {layer: 1},
	"internal/stateformat/format0": {layer: 1, may: "internal/stateformat"},
	"internal/stateformat/golden":  {layer: 1, may: "internal/stateformat internal/stateformat/format0"},
	"internal/finding/findingtest": {layer: 1, may: "internal/finding"},

	"proto/loadstar/v1": {layer: 1, external: "connectrpc.com/connect google.golang.org/protobuf"},

	"internal/archtest":       {layer: 5},
	"internal/demo":           {layer: 5, may: "agent agent/api agent/identity agent/live agent/readings agent/release fed/generic fed/policy fed/recipe fed/serve forecast forecast/issue internal/cputime internal/mtls lab/sim nn/kernel proto/loadstar/v1 series series/store series/synth server server/web", external: "golang.org/x/sync google.golang.org/protobuf"},
	"internal/doctor":         {layer: 5, may: "agent/config agent/identity agent/mqtt internal/boltfile internal/disk internal/filelock internal/finding internal/mtls internal/port nn/kernel series/store"},
	"internal/year":           {layer: 5, may: "agent/live forecast/issue nn/kernel series series/store"},
	"internal/bench":          {layer: 5, may: "forecast nn nn/kernel series"},
	"internal/bench/engine":   {layer: 5, may: "forecast internal/bench internal/cputime nn/kernel series", external: "golang.org/x/sys"},
	"internal/bench/simulate": {layer: 5, may: "fed fed/recipe internal/bench lab/sim nn/kernel"},
	"internal/bench/skill":    {layer: 5, may: "forecast internal/bench lab/outlook metric nn/kernel series series/feature"},
	"internal/bench/fleet":    {layer: 5, may: "fed/recipe fed/round internal/bench internal/cputime internal/fleetload internal/freeport internal/jointoken internal/mtls internal/proc proto/loadstar/v1 server/gateway server/ledger server/terms", external: "golang.org/x/sys"},
	"internal/pretrain":       {layer: 5, may: "fed/generic fed/recipe fed/serve forecast forecast/issue internal/bench/skill nn/kernel series series/feature series/read", external: "golang.org/x/sync"},
	"internal/attack":         {layer: 5, may: "agent fed fed/policy fed/recipe fed/round fed/setup internal/freeport internal/jointoken internal/leak internal/mtls internal/pgtest internal/proc internal/protocol nn/kernel proto/loadstar/v1 series", external: "connectrpc.com/connect github.com/jackc/pgx/v5 github.com/johannesboyne/gofakes3 github.com/oauth2-proxy/mockoidc github.com/parquet-go/parquet-go golang.org/x/sync google.golang.org/protobuf modernc.org/sqlite"},
	"internal/simulation":     {layer: 5},
	"internal/chaos":          {layer: 5, may: "agent/identity agent/state internal/faultfs internal/freeport internal/mtls internal/pgtest internal/proc internal/protocol server server/blob server/ledger server/pki", external: "github.com/jackc/pgx/v5 github.com/johannesboyne/gofakes3 modernc.org/sqlite"},
	"internal/atomicfile":     {layer: 1},
	"internal/disk":           {layer: 1, may: "internal/finding", external: "golang.org/x/sys"},
	"internal/finding":        {layer: 1},
	"internal/backoff":        {layer: 1},
	"docs":                    {layer: 1},
	"internal/port":           {layer: 1},
	"internal/contexts":       {layer: 1, may: "internal/atomicfile internal/config", external: "go.yaml.in/yaml/v3"},
	"internal/nearby":         {layer: 1, may: "internal/config"},
	"internal/boltfile":       {layer: 1, may: "internal/filelock", external: "go.etcd.io/bbolt"},
	"internal/webui":          {layer: 1},
	"internal/graceful":       {layer: 1},
	"internal/connlimit":      {layer: 1, external: "github.com/hashicorp/golang-lru golang.org/x/time"},
	"internal/csvcell":        {layer: 1},
	"internal/config":         {layer: 1, external: "go.yaml.in/yaml/v3"},
	"internal/datatest":       {layer: 1},
	"internal/agentapi":       {layer: 1, may: "internal/protocol proto/loadstar/v1"},
	"internal/fleetload":      {layer: 4, may: "internal/jointoken internal/mtls internal/protocol proto/loadstar/v1", external: "golang.org/x/sync google.golang.org/protobuf"},
	"internal/head":           {layer: 1, may: "internal/mtls"},
	"internal/jointoken":      {layer: 1},
	"internal/leak":           {layer: 4, may: "fed fed/client fed/recipe fed/setup forecast metric nn nn/kernel series"},
	"internal/longtest":       {layer: 1},
	"internal/mtls":           {layer: 1, may: "internal/atomicfile"},
	"internal/pgtest":         {layer: 1, may: "internal/freeport internal/proc"},
	"internal/problem":        {layer: 1},
	"internal/proc":           {layer: 1},
	"internal/protocol":       {layer: 1, external: "connectrpc.com/connect google.golang.org/protobuf"},
	"internal/sdnotify":       {layer: 1},
	"internal/cputime":        {layer: 1, external: "golang.org/x/sys"},
	"internal/faultfs":        {layer: 1, may: "internal/proc", external: "github.com/hanwen/go-fuse/v2 golang.org/x/sys"},
	"internal/filelock":       {layer: 1, external: "golang.org/x/sys"},
	"internal/freeport":       {layer: 1},
	"internal/mmap":           {layer: 1, external: "golang.org/x/sys"},
}

// testOnly lists the packages that only tests may import.
var testOnly = []string{"nn/nntest", "internal/stateformat/golden", "internal/archtest", "internal/datatest", "internal/longtest", "internal/pgtest", "internal/finding/findingtest", "internal/faultfs", "internal/attack", "internal/chaos", "internal/leak", "internal/pretrain", "internal/simulation"}

const module = "loadstar"

type goPackage struct {
	ImportPath, Doc string
	Imports         []string
}

// packages lists the module's packages with their imports, for one CPU architecture.
func packages(t *testing.T, arch string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", module+"/...")
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
		r, ok := layers[p.ImportPath]
		if !ok {
			t.Errorf("%s is not in the table: list its layer and what it may import in archtest_test.go, and run make reference", p.ImportPath)
			continue
		}
		seen[p.ImportPath] = true
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
				checkImport(t, p.ImportPath, r, ours)
			} else if strings.Contains(strings.Split(imp, "/")[0], ".") {
				if !slices.ContainsFunc(strings.Fields(r.external), func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") }) {
					t.Errorf("%s imports %s, which is not in its list of external modules: remove the import or add the module to the table", p.ImportPath, imp)
				}
			}
		}
	}
	for path := range layers {
		if !seen[path] {
			t.Errorf("%s is in the table but does not exist: remove its line in archtest_test.go, and run make reference", path)
		}
	}
}

func checkImport(t *testing.T, from string, r pkg, to string) {
	t.Helper()
	switch {
	case slices.Contains(testOnly, to) && !slices.Contains(testOnly, from):
		t.Errorf("%s imports %s, which only tests may import", from, to)
	case layers[to].layer > r.layer:
		t.Errorf("%s (layer %d) imports %s (layer %d): a package must not import a higher layer", from, r.layer, to, layers[to].layer)
	case r.may != "..." && !slices.Contains(strings.Fields(r.may), to):
		t.Errorf("%s imports %s: the table allows only %q", from, to, r.may)
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t, "amd64") {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "regenerate docs/reference/packages.md")

// TestReference checks that docs/reference/packages.md is what layers and the package comments say.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "packages.md")
	want := reference(packages(t, "amd64"))
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not that of the packages: run make reference", path)
	}
}

// reference returns docs/reference/packages.md: the packages of each layer, the highest first, with
// the first sentence of their comments.
func reference(all []goPackage) string {
	var b strings.Builder
	b.WriteString(`# Packages

<!-- Generated by make reference from internal/archtest and the package comments. Change these instead. -->

[Architecture](../architecture.md) explains the layers. A package imports only what its row lists, and never a higher layer.
` + "`internal/archtest`" + ` tests this, and also which external modules each package may import.
`)
	for layer := 5; layer >= 1; layer-- {
		fmt.Fprintf(&b, "\n## Layer %d\n\n| package | purpose | may import |\n|---|---|---|\n", layer)
		for _, p := range all {
			r := layers[p.ImportPath]
			if r.layer != layer {
				continue
			}
			may := strings.Join(strings.Fields(r.may), ", ")
			switch r.may {
			case "...":
				may = "everything"
			case "":
				may = "-"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.ImportPath, purpose(p.Doc), may)
		}
	}
	return b.String()
}

// purpose returns the first sentence of a package comment without the words that all of them begin with.
func purpose(doc string) string {
	words := strings.Fields(strings.TrimSuffix(doc, "."))
	if len(words) > 2 && (words[0] == "Package" || words[0] == "Command") {
		words = words[2:]
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", "\\|")
}
