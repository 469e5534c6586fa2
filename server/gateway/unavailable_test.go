package gateway

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
)

// If the database is closed, the log names the call and the failed operation. The agent
// learns only that it must retry.
func TestUnavailable(t *testing.T) {
	for procedure, operation := range map[string]string{
		v1.AgentServiceCheckInProcedure: "ledger: looking up agent agent: ",
		v1.AgentServicePushProcedure:    "reading the terms of run run: ledger: reading run run: ",
		v1.AgentServiceDeclineProcedure: "ledger: declining leases of agent agent in run run: ",
	} {
		t.Run(procedure, func(t *testing.T) {
			g, h := newGateway(t)
			var log bytes.Buffer
			g.Log = slog.New(slog.NewTextHandler(&log, nil))
			must(t, g.Ledger.Close())
			g.trust.end("agent", "", g.trust.begin(), true) // so that Push and Decline skip the lookup
			body, err := proto.Marshal(seeds("run")[procedure])
			must(t, err)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/proto")
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
