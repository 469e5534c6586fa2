package examine

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"loadstar/internal/finding"
)

// TestNotify checks when notifications are sent, in both formats, and that a notification is
// sent again if sending fails.
func TestNotify(t *testing.T) {
	var got []string
	fails := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if fails {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		if r.Header.Get("Title") != "" {
			got = append(got, r.Header.Get("Title")+" ["+r.Header.Get("Priority")+"] "+string(body)+" "+r.Header.Get("Click"))
			return
		}
		var m message
		if err := json.Unmarshal(body, &m); err != nil {
			t.Error(err)
		}
		got = append(got, m.Alert+" "+string(m.Level)+" "+m.Runbook)
	}))
	defer s.Close()
	warn := finding.List{{Level: finding.Warn, Check: "agents", Text: "2 of 3 were not seen", Do: "look"}}
	fail := finding.List{{Level: finding.Fail, Check: "disk of the server", Text: "full", Do: "make room"}}
	fine := finding.List{{Level: finding.OK, Check: "agents"}, {Level: finding.OK, Check: "disk of the server"}}
	play := func(address string) {
		n, err := NewNotifier(address)
		if err != nil {
			t.Fatal(err)
		}
		n.Log, n.Page = slog.New(slog.DiscardHandler), "https://dash.example/"
		got, fails = nil, false
		for _, all := range []finding.List{fine, warn, fine, warn, warn, warn, fail} {
			n.note(t.Context(), all)
		}
		fails = true
		n.note(t.Context(), fine)
		fails = false
		n.note(t.Context(), fine)
		n.note(t.Context(), fine)
	}
	play(s.URL + "/hook")
	runbook := " https://dash.example/docs/runbooks#"
	if want := "AgentsAway WARN" + runbook + "agentsaway|DiskFull FAIL" + runbook + "diskfull|AgentsAway OK" + runbook + "agentsaway|DiskFilling OK" + runbook + "diskfilling"; strings.Join(got, "|") != want {
		t.Errorf("webhook:\n got %s\nwant %s", strings.Join(got, "|"), want)
	}
	play("ntfy:" + s.URL + "/topic")
	if len(got) != 4 || !strings.HasPrefix(got[1], "Loadstar: DiskFull [high] disk of the server: full\nmake room https://") || !strings.HasPrefix(got[2], "Loadstar: AgentsAway is over [low]") {
		t.Errorf("ntfy: %q", got)
	}
	for _, bad := range []string{"", "example.org", "ntfy:topic", "file:///etc/passwd"} {
		if _, err := NewNotifier(bad); err == nil {
			t.Errorf("%q is an address", bad)
		}
	}
}

// TestRunbooks checks that every alert of a check has a runbook.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range append([]string{"issuer of certificates", "agents' certificates", "agents", "clients' readings", "rounds", "backup"}, checks...) {
		for _, level := range []finding.Level{finding.Warn, finding.Fail} {
			if alert := Alert(finding.Finding{Check: check, Level: level}); !strings.Contains(string(page), "\n## "+alert+"\n") {
				t.Errorf("%s: no runbook %s", check, alert)
			}
		}
	}
}
