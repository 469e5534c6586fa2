package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// room is a package of the house: where it stands and what it may lean on.
type room struct {
	floor int
	may   string // our packages that it may import; "..." is everything below
	// external lists the modules outside the standard library that it may
	// import. Every one of them ends up in a binary on somebody's meter.
	external string
}

// house is the table of docs/architecture.md. Arrows point down, or sideways
// where the table says so. A new package needs a line in both.
var house = map[string]room{
	"cmd/loadstar":       {floor: 5, may: "...", external: "connectrpc.com/connect github.com/spf13/cobra github.com/spf13/pflag github.com/parquet-go/parquet-go github.com/vbauerster/mpb golang.org/x/sys google.golang.org/protobuf"},
	"cmd/loadstar-agent": {floor: 5, may: "agent agent/identity nn/kernel series"},

	"server":             {floor: 4, may: "server/aggregator server/blob server/bus server/coordinator server/gateway server/ledger server/pki server/region server/terms server/operator", external: "github.com/prometheus/client_golang golang.org/x/sync"},
	"server/gateway":     {floor: 4, may: "internal/jointoken proto/loadstar/v1 server/blob server/bus server/ledger server/pki server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/aggregator":  {floor: 4, may: "fed/exact fed/round proto/loadstar/v1 server/bus server/ledger server/terms", external: "github.com/prometheus/client_golang google.golang.org/protobuf"},
	"server/coordinator": {floor: 4, may: "fed fed/recipe fed/round server/blob server/ledger server/terms", external: "github.com/prometheus/client_golang"},
	"server/region":      {floor: 4, may: "fed/round internal/agentapi proto/loadstar/v1 server/blob server/ledger server/terms", external: "connectrpc.com/connect github.com/prometheus/client_golang"},
	"server/operator":    {floor: 4, may: "fed/recipe internal/jointoken proto/loadstar/v1 server/ledger server/pki server/terms", external: "connectrpc.com/connect"},
	"server/terms":       {floor: 4, may: "fed fed/exact fed/recipe fed/round proto/loadstar/v1 series"},
	"server/ledger":      {floor: 4, external: "github.com/jackc/pgx/v5 github.com/pressly/goose/v3 modernc.org/sqlite"},
	"server/bus":         {floor: 4, external: "github.com/nats-io golang.org/x/sync golang.org/x/sys google.golang.org/protobuf"},
	"server/blob":        {floor: 4, may: "internal/atomicfile", external: "github.com/minio/minio-go/v7 golang.org/x/sync"},
	"server/pki":         {floor: 4, may: "internal/jointoken internal/mtls", external: "golang.org/x/sys"},

	"agent":          {floor: 4, may: "agent/state fed fed/client fed/recipe fed/round nn nn/kernel proto/loadstar/v1 series", external: "connectrpc.com/connect google.golang.org/protobuf"},
	"agent/state":    {floor: 4, external: "go.etcd.io/bbolt"},
	"agent/identity": {floor: 4, may: "internal/jointoken internal/mtls proto/loadstar/v1", external: "connectrpc.com/connect"},

	"lab/experiment": {floor: 4, may: "fed fed/recipe forecast internal/config lab/run lab/sim metric nn/kernel series", external: "gopkg.in/yaml.v3"},
	"lab/sim":        {floor: 4, may: "fed fed/client fed/exact fed/recipe fed/round forecast internal/atomicfile lab/run metric nn/kernel series", external: "golang.org/x/sys"},
	"lab/report":     {floor: 4, may: "lab/run metric", external: "gopkg.in/yaml.v3"},
	"lab/run":        {floor: 4, may: "internal/atomicfile metric", external: "github.com/parquet-go/parquet-go golang.org/x/sys"},

	"fed/recipe":     {floor: 3, may: "fed fed/aggregate fed/clientopt fed/exact fed/localtrain fed/schedule fed/serveropt forecast internal/config nn nn/kernel series", external: "gopkg.in/yaml.v3"},
	"fed/round":      {floor: 3, may: "fed fed/exact nn"},
	"fed/client":     {floor: 3, may: "fed forecast nn nn/kernel series"},
	"fed/aggregate":  {floor: 3, may: "fed"},
	"fed/serveropt":  {floor: 3, may: "fed"},
	"fed/schedule":   {floor: 3, may: "fed"},
	"fed/clientopt":  {floor: 3, may: "fed nn/kernel"},
	"fed/localtrain": {floor: 3, may: "fed nn nn/kernel"},
	"fed":            {floor: 3, may: "fed/exact", external: "gopkg.in/yaml.v3"},
	"fed/exact":      {floor: 3},

	"forecast": {floor: 2, may: "nn nn/kernel nn/safetensors series metric"},

	"nn":             {floor: 1, may: "nn/kernel"},
	"nn/kernel":      {floor: 1, external: "golang.org/x/sys"},
	"nn/safetensors": {floor: 1},
	"nn/nntest":      {floor: 1, may: "nn nn/kernel"},

	"series":         {floor: 1, may: "internal/atomicfile", external: "golang.org/x/sys"},
	"series/read":    {floor: 1, may: "series internal/config", external: "github.com/klauspost/compress github.com/parquet-go/parquet-go gopkg.in/yaml.v3"},
	"series/quality": {floor: 1, may: "series"},
	"series/synth":   {floor: 1},
	"series/write":   {floor: 1, may: "series internal/atomicfile", external: "github.com/parquet-go/parquet-go"},

	"metric": {floor: 1},

	"proto/loadstar/v1": {floor: 1, external: "connectrpc.com/connect google.golang.org/protobuf"},

	"internal/archtest":   {floor: 5},
	"internal/chaos":      {floor: 5, may: "agent/identity agent/state internal/pgtest", external: "github.com/jackc/pgx/v5 github.com/nats-io modernc.org/sqlite"},
	"internal/atomicfile": {floor: 1},
	"internal/config":     {floor: 1, external: "gopkg.in/yaml.v3"},
	"internal/datatest":   {floor: 1},
	"internal/agentapi":   {floor: 1, may: "proto/loadstar/v1"},
	"internal/fleetload":  {floor: 4, may: "internal/jointoken internal/mtls proto/loadstar/v1", external: "golang.org/x/sync google.golang.org/protobuf"},
	"internal/jointoken":  {floor: 1},
	"internal/mtls":       {floor: 1, may: "internal/atomicfile"},
	"internal/pgtest":     {floor: 1},
}

// testOnly are packages that nothing but tests may import.
var testOnly = []string{"nn/nntest", "internal/archtest", "internal/datatest", "internal/pgtest", "internal/chaos"}

const module = "loadstar"

type goPackage struct {
	ImportPath, Doc string
	Imports         []string
}

// packages lists the tree as it is built for an architecture.
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
		r, ok := house[p.ImportPath]
		if !ok {
			t.Errorf("%s is not in the table: say in one sentence what it is for, in docs/architecture.md, and what it may import, here", p.ImportPath)
			continue
		}
		seen[p.ImportPath] = true
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
				checkArrow(t, p.ImportPath, r, ours)
			} else if strings.Contains(strings.Split(imp, "/")[0], ".") {
				if !slices.ContainsFunc(strings.Fields(r.external), func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") }) {
					t.Errorf("%s imports %s, a dependency that the table does not give it", p.ImportPath, imp)
				}
			}
		}
	}
	for path := range house {
		if !seen[path] {
			t.Errorf("%s is in the table, but not in the tree", path)
		}
	}
}

func checkArrow(t *testing.T, from string, r room, to string) {
	t.Helper()
	switch {
	case slices.Contains(testOnly, to) && !slices.Contains(testOnly, from):
		t.Errorf("%s imports %s, which is for tests", from, to)
	case house[to].floor > r.floor:
		t.Errorf("%s (floor %d) imports %s (floor %d): arrows point down only", from, r.floor, to, house[to].floor)
	case r.may != "..." && !slices.Contains(strings.Fields(r.may), to):
		t.Errorf("%s imports %s: the table allows it %q", from, to, r.may)
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t, "amd64") {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// TestDocumented holds the architecture page to the table.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for path, r := range house {
		may := strings.Join(strings.Fields(r.may), ", ")
		switch r.may {
		case "...":
			may = "everything"
		case "":
			may = "-"
		}
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\| `%s` \\| .+ \\| %s \\|$", r.floor, path, regexp.QuoteMeta(may)))
		if !row.Match(page) {
			t.Errorf("docs/architecture.md has no row for %s on floor %d, which may import %s", path, r.floor, may)
		}
	}
}
