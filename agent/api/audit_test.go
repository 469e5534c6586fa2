package api

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	"loadstar/agent/audit"
)

// TestAudit starts an audit, follows it and reads its report. A second audit must wait.
func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audits := &audit.Auditor{}
		s, _ := server(t, func(c *Config) { c.Audits = audits })
		answer := func(method, client string, code int) (x audit.Status) {
			t.Helper()
			r := ask(s, method, "/v1/audit/"+client, "")
			if err := json.Unmarshal([]byte(body(t, r)), &x); err != nil || r.StatusCode != code || r.Header.Get("Cache-Control") != "no-store" && code < 300 {
				t.Errorf("%s %s: %d %v %v", method, client, r.StatusCode, err, r.Header)
			}
			return x
		}
		if x := answer("GET", "main-panel", 200); x.State != audit.None {
			t.Errorf("%+v", x)
		}
		answer("POST", "main-panel", 409) // no agent serves audits yet
		next := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			audits.Serve(ctx, func(_ context.Context, client string, progress func(int, int)) (*audit.Report, error) {
				progress(1, 4)
				return &audit.Report{Client: client, Run: "r", Attacks: []audit.Attack{{Name: audit.Profile, Truth: []float64{1.5}}}}, <-next
			})
		}()
		synctest.Wait()
		answer("POST", "main-panel", 202)
		synctest.Wait()
		if x := answer("GET", "main-panel", 200); x.State != audit.Running || x.Share != 0.25 || x.Report != nil {
			t.Errorf("%+v", x)
		}
		answer("POST", "main-panel", 202) // the same audit
		answer("POST", "ne%22w%5C", 409)  // another audit must wait
		next <- nil
		synctest.Wait()
		if x := answer("GET", "main-panel", 200); x.State != audit.Done || x.Report.Attacks[0].Truth[0] != 1.5 {
			t.Errorf("%+v", x)
		}
		answer("POST", "main-panel", 202)
		next <- errors.New("no weights")
		synctest.Wait()
		if x := answer("GET", "main-panel", 200); x.State != audit.Failed || x.Error != "no weights" || x.Report != nil {
			t.Errorf("%+v", x)
		}
		stop()
		<-done
		answer("POST", "main-panel", 409)
	})
}
