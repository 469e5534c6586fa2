package gateway

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
)

// TestUnavailable checks that if the database is closed, the log names the call and the failed
// operation, and the agent learns only that it must retry.
func TestUnavailable(t *testing.T) {
	const procedure = v1.AgentServiceExchangeProcedure
	for operation, q := range map[string]*v1.ExchangeRequest{
		"ledger: reading the tasks of agent agent: ":              {},
		"reading the terms of run run: ledger: reading run run: ": {Result: &v1.Result{Run: "run"}},
		"ledger: declining leases of agent agent in run run: ":    {Declines: []*v1.Decline{{Turns: &v1.Turns{Run: "run", Clients: []string{"a0"}}}}},
		"ledger: looking up agent agent: ":                        nil,
	} {
		t.Run(operation, func(t *testing.T) {
			g, h := newGateway(t)
			var log bytes.Buffer
			g.refuse.log = slog.New(slog.NewTextHandler(&log, nil))
			must(t, g.Ledger.Close())
			if q != nil {
				g.trust.end("agent", "", directory.Caller{ID: "agent", Hosts: true}, g.trust.begin(), true) // makes the call skip the lookup
			}
			body, err := proto.Marshal(q)
			must(t, err)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/proto")
			r.Header.Set(protocol.Header, strconv.Itoa(protocol.Version))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "ledger") {
				t.Errorf("the agent got %d %s", w.Code, w.Body)
			}
			for _, want := range []string{operation, "procedure=" + procedure, "agent=agent"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, log.String())
				}
			}
		})
	}
}
