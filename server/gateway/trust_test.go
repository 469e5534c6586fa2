package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"loadstar/server/directory"
)

func TestTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTrust()
		has := func(agent, serial string) bool { _, ok := x.get(agent, serial); return ok }
		if has("a", "1") {
			t.Error("an agent that was never looked up is trusted")
		}
		x.end("a", "1", directory.Caller{}, x.begin(), true)
		time.Sleep(trustFor - 1)
		if !has("a", "1") || has("b", "1") || has("a", "2") {
			t.Error("an agent must be trusted for a second with one certificate, and no other")
		}
		time.Sleep(time.Nanosecond)
		if has("a", "1") {
			t.Error("trusted for longer than a second")
		}
		// Trust lasts for a second from the start of the lookup, because the ledger's response
		// may be that old.
		l := x.begin()
		time.Sleep(trustFor)
		x.end("a", "1", directory.Caller{}, l, true)
		if has("a", "1") {
			t.Error("trusted for a second after a lookup that took a second")
		}
		// A lookup that finds an agent revoked ends the trust from an earlier lookup.
		x.end("a", "1", directory.Caller{}, x.begin(), true)
		x.end("a", "1", directory.Caller{}, x.begin(), false)
		if has("a", "1") {
			t.Error("trusted after a lookup has found it revoked")
		}
		// A revocation also discards lookups in progress.
		x.end("a", "1", directory.Caller{}, x.begin(), true)
		l = x.begin()
		x.drop("a")
		if has("a", "1") {
			t.Error("trusted after its revocation")
		}
		x.end("a", "1", directory.Caller{}, l, true)
		if has("a", "1") {
			t.Error("trusted by a lookup that began before its revocation")
		}
	})
}

// TestRevoked checks that a revocation takes effect at once in the gateway that receives it,
// and within trustFor in other gateways.
func TestRevoked(t *testing.T) {
	g, h := newGateway(t)
	fetch := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/blobs/"+strings.Repeat("0", 64), nil))
		return w.Code
	}
	// The test sets the end of trust, so that it does not depend on the clock.
	trustUntil := func(end time.Time) {
		g.trust.mu.Lock()
		defer g.trust.mu.Unlock()
		g.trust.known["agent"] = trusted{Caller: directory.Caller{ID: "agent"}, began: end.Add(-trustFor)}
	}
	const allowed = http.StatusNotFound // the call is allowed, but there is no such blob
	if code := fetch(); code != allowed {
		t.Fatalf("before: %d", code)
	}
	must(t, g.Ledger.Directory.RevokeAgent(t.Context(), "agent", "test", time.Now()))
	trustUntil(time.Now().Add(time.Hour))
	if code := fetch(); code != allowed {
		t.Errorf("revoked by another process, still trusted: %d", code)
	}
	trustUntil(time.Now())
	if code := fetch(); code != http.StatusForbidden {
		t.Errorf("revoked by another process, no longer trusted: %d", code)
	}
	trustUntil(time.Now().Add(time.Hour))
	g.Revoked("agent")
	if code := fetch(); code != http.StatusForbidden {
		t.Errorf("revoked by this process: %d", code)
	}
}
