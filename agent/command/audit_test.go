package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/agent/audit"
)

func reportOf(client string) *audit.Report {
	hours := audit.Attack{
		Name: audit.Profile, Updates: 1, Meaning: "well", Labels: []string{"00:00", "01:00", "02:00"}, Truth: []float64{1, 2, 3},
		Guess: audit.Guess{Load: []float64{1, 3, 2}, Correlation: 0.5}, Known: audit.Guess{Load: []float64{1, 2, 3}, Correlation: 1}, Empty: audit.Guess{Correlation: -0.25},
	}
	more := hours
	more.Updates, more.Guess = 7, audit.Guess{Load: []float64{5, 5, 5}, Correlation: 0.75}
	return &audit.Report{Client: client, Run: "k3v9x2ab", Round: 9, Pending: true, Stored: 1.5e6, Attacks: []audit.Attack{hours, more, {Name: audit.Readings, Updates: 7}}}
}

func TestWriteAudit(t *testing.T) {
	var b bytes.Buffer
	if err := writeAudit(&b, reportOf("main-panel")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"main-panel: updates of run k3v9x2ab, the newest of round 9 (not counted yet)\n",
		"mean load by hour of the day  1        well           0.50         -0.25                1.00\n",
		"mean load by hour of the day  7        well           0.75 ",
		"\nmean load by hour of the day, 00:00 to 02:00\n  truth        ▁▅█\n  guess        ▅▅▅\n  with secret  ▁▅█\n",
		"stores 1.5 MB of weights\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "▁█▅") {
		t.Error("the curve of fewer updates is printed too")
	}
}

// TestAskAudit asks a running agent for an audit. It also checks that another program at the
// agent's address cannot control the terminal.
func TestAskAudit(t *testing.T) {
	asked := 0
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		send := func(code int, x any) {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(x) // the test notices missing output
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /v1/clients":
			send(200, map[string]any{"clients": []map[string]any{{"client": "a"}, {"client": "sum", "members": []string{"a"}}, {"client": "b"}, {"client": "c"}}})
		case "POST /v1/audit/a":
			send(202, audit.Status{State: audit.Running})
		case "GET /v1/audit/a":
			send(200, audit.Status{State: audit.Done, Report: reportOf("a\u009b")})
		case "POST /v1/audit/b":
			send(409, map[string]string{"detail": "bus\u202ey"})
		case "POST /v1/audit/c":
			send(202, audit.Status{State: audit.Failed, Error: "no\x1b up\u009bdates"})
		default:
			http.NotFound(w, r)
		}
	}))
	defer agent.Close()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	text := fmt.Sprintf("site: {zone: Europe/Berlin, interval: 15m}\nclients: {a: }\nhttp: {listen: %q}\n", strings.TrimPrefix(agent.URL, "http://"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		err := Audit(t.Context(), Options{Config: path, Out: &out}, "", asJSON)
		if err == nil || !strings.Contains(err.Error(), "client b: bus") || !strings.Contains(err.Error(), "client c: no") || strings.Contains(err.Error(), "sum") {
			t.Errorf("the errors of b and c: %v", err)
		}
		if strings.ContainsAny(out.String()+err.Error(), "\x1b\u009b\u202e") || !strings.Contains(out.String(), "k3v9x2ab") {
			t.Errorf("printed %q", out.String())
		}
		if asJSON && !json.Valid(out.Bytes()) {
			t.Errorf("no JSON: %q", out.String())
		}
	}
	if asked != 10 {
		t.Errorf("%d requests", asked)
	}
}
