package simulation

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var planted = flag.Bool("planted", false, "plant bugs in the product and check that each is found")

// private marks the bugs that only private seeds can find.
const private = "private: "

// bugs lists mistakes that are easy to make and hard to see. Each replaces a string in the
// product's source, which must occur exactly once.
var bugs = []struct{ name, file, text, by string }{
	{
		private + "a keeper answers before the release is on disk", "keeper/release.go",
		"if k.options.on(ruleRecord) {", "if !k.options.on(ruleRecord) {",
	},
	{
		private + "a keeper answers a second request for a round", "keeper/release.go",
		"if row != nil && (k.options.on(ruleOnce) || string(row.Request) == string(hash)) {", "if row != nil && string(row.Request) == string(hash) {",
	},
	{
		private + "a keeper that was restored has the masks of before", "fed/mask/mask.go",
		"f.number(t.Number, ", "f.number(",
	},
	{
		private + "an agent that cannot mask its update sends it in plain", "agent/train.go",
		"if errors.As(err, &no) {\n\t\ta.worklist.decline(j, no.code, no.reason, j.clients...)\n\t\treturn nil\n\t} else if err != nil {", "if errors.As(err, &no) {\n\t\tmasks = nil\n\t} else if err != nil {",
	},
	{
		private + "the server asks only one of two keepers", "server/keepers/calls.go",
		"range append([]*keeper{decides}, others...) {", "range append([]*keeper{decides}, others[:0]...) {",
	},
	{
		"a lease is deleted outside the transaction that counts", "server/ledger/turns.go",
		"\treturn counted, nil\n}\n",
		"\terr = ct.store.Update(ctx, func(tx *sqlstore.Txn) error {\n" +
			"\t\t_, err := tx.ExecContext(ctx, \"DELETE FROM leases WHERE until >= 1000000000000000\")\n\t\treturn err\n\t})\n\treturn counted, err\n}\n" +
			"\x00" + `"DELETE FROM leases WHERE run = $1 AND` + "\x00" + `"UPDATE leases SET until = until + 1000000000000000 WHERE run = $1 AND`,
	},
	{
		"a commit is acknowledged before it is on disk", "server/sqlstore/store.go",
		"if err := s.Write.pass(ctx, Commit, \"\"); err != nil {\n\t\t\treturn err", "if err := s.Write.pass(ctx, Commit, \"\"); err != nil {\n\t\t\treturn nil",
	},
	{
		"a result is answered before its commit", "server/gateway/result.go",
		"counted, err := counter.count(within, a)", "_ = within\n\tgo counter.count(*counter.home.Load(), a)\n\tcounted, err := true, error(nil)",
	},
	{
		"a region's gateway says that a result is counted", "server/gateway/result.go",
		"\tif x.region {\n", "\tif x.region && r.Round < 0 {\n",
	},
	{
		"a region tells its agents that a result is counted before the hub has decided", "server/ledger/turns.go",
		`"": Held,`, `"": Counted,`,
	},
	{
		"an agent is trusted for an hour after the last look at the ledger, even if it is revoked", "server/gateway/trust.go",
		"trustFor = time.Second", "trustFor = time.Hour\x00(t *trust) drop(agent string) {\x00(t *trust) drop(agent string) {\n\treturn" +
			"\x00(changed bool) {\n\x00(changed bool) {\n\treturn false\n",
	},
	{
		"a verdict comes from a copy in memory that is old", "server/gateway/result.go",
		"\tif !x.mirror.hasLeases(agent, r) {\n",
		"\tif _, fresh := x.mirror.current(); fresh && !x.mirror.hasLeases(agent, r) {\n\t\treturn &v1.Received{Outcome: v1.Outcome_OUTCOME_CLOSED}, nil\n\t}\n\tif !x.mirror.hasLeases(agent, r) {\n",
	},
	{
		"a lease is given twice, by two gateways", "server/gateway/exchange.go",
		"\t\t\tok = ok && session == r.Session\n", "\t\t\t_ = session\n",
	},
	{
		"a version is deleted while a lease refers to it", "server/ledger/versions.go",
		"AND version NOT IN (SELECT version FROM leases WHERE run = $1)", "\x00newest - keptVersions + 1\x00newest",
	},
	{
		"blobs are deleted before the transaction that makes them unnecessary", "server/coordinator/merge.go",
		"\t\tretired, err = x.Retire(r.Version + 1)\n\t\treturn err", "\t\tretired, err = x.Retire(r.Version + 1)\n\t\tblob.DeleteAll(ctx, d.Blobs, append(retired, x.Run.Server), d.log)\n\t\treturn err",
	},
	{
		"a coordinator that takes over skips the results since the last closed round", "server/coordinator/driver.go",
		"if d.seen, err = x.LastBatch(); err != nil {", "if d.seen = x.Run.Batch; err != nil {",
	},
	{
		"a coordinator keeps its memory after an error", "server/coordinator/coordinator.go",
		"\t\t\tdelete(k.drivers, a.ID)\n\t\t\tk.warn", "\t\t\tk.warn",
	},
	{
		"a coordinator does not look whether it still has the lead", "server/ledger/drive.go",
		"if err := l.checkLead(ctx, tx, lead); err != nil {", "if err := l.checkLead(ctx, tx, lead); err != nil && !errors.Is(err, ErrDeposed) {",
	},
	{
		"clients keep the layers of results that were not counted", "agent/state/result.go",
		"\t\tif !counted {\n", "\t\tif !counted && r.Round < 0 {\n",
	},
	{
		"an agent forgets its results when it starts again", "agent/agent.go",
		"newWorklist(a.names, results)", "newWorklist(a.names, nil)",
	},
	{
		"a coordinator does not store that turns were lost", "server/coordinator/driver.go",
		"\treturn len(lost) > 0, err\n", "\treturn false, err\n",
	},
}

// plant returns the file with a bug. A bug can replace several strings.
func plant(t *testing.T, source, text, by string) string {
	t.Helper()
	parts := append([]string{text}, strings.Split(by, "\x00")...)
	for i := 0; i+1 < len(parts); i += 2 {
		if strings.Count(source, parts[i]) != 1 {
			t.Fatalf("%q occurs %d times, want once: the product has changed, so plant this bug elsewhere", parts[i], strings.Count(source, parts[i]))
		}
		source = strings.Replace(source, parts[i], parts[i+1], 1)
	}
	return source
}

// TestPlanted plants each bug and looks for it in at most 1,000 seeds.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`seed \d+, step \d+, trace \w+: (.*)`)
	tried := regexp.MustCompile(`(?m)^seeds (\d+),`)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			path := filepath.Join(root, b.file)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			mutant := plant(t, string(source), b.text, b.by)
			if !*planted {
				return // the test only checks that the bug can still be planted
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, "mutant.go"), []byte(mutant))
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: filepath.Join(dir, "mutant.go")}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "overlay.json"), overlay)
			binary := filepath.Join(dir, "simulation")
			if out, err := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(binary, "-test.run", "TestSeeds", "-test.timeout", "0", "-failfast", "-seeds", "1000", "-shrink=false", fmt.Sprint("-private=", strings.HasPrefix(b.name, private))).CombinedOutput()
			if err == nil {
				t.Fatal("not found in 1,000 seeds")
			}
			m, n := found.FindSubmatch(out), tried.FindSubmatch(out)
			if m == nil || n == nil {
				t.Fatalf("it fails otherwise:\n%.3000s", out)
			}
			t.Logf("found after %s seeds: %s", n[1], m[1])
		})
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
