package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/audit"
	"loadstar/fed"
	"loadstar/fed/client"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// tapped records the calls of an agent.
type tapped struct {
	next http.RoundTripper

	mu    sync.Mutex
	calls []string // path and body
}

func (x *tapped) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	x.mu.Lock()
	x.calls = append(x.calls, r.URL.Path+" "+string(body))
	x.mu.Unlock()
	return x.next.RoundTrip(r)
}

// forget deletes the recorded calls, and returns their number.
func (x *tapped) forget() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.calls)
	x.calls = nil
	return n
}

func ignore(int, int) {}

// TestAudit checks an audit in a running agent: it attacks the updates of the client's counted
// rounds. During and after the audit, the agent sends only empty check-ins.
func TestAudit(t *testing.T) {
	d := meters(t, 3)
	g := newGateway(t, small("fedavg", settings{"partition": "head", "schedule.cohort": 3}), namesOf(d), 3, false, 1)
	dir := t.TempDir()
	c := config(t, "agent 0", g.http.URL, dir, d)
	tap := &tapped{next: c.Client.Transport}
	c.Client.Transport, c.Audits = tap, &audit.Auditor{}
	if err := c.Audits.Start("meter-01"); !errors.Is(err, audit.ErrIdle) {
		t.Errorf("before the agent runs: %v", err)
	}
	stop := start(t, c)
	g.settled(t, 5*time.Minute)
	counted := 0
	for _, m := range g.log {
		for _, name := range m.counted {
			if name == "meter-01" {
				counted++
			}
		}
	}
	ask := func(name string) audit.Status {
		if err := c.Audits.Start(name); err != nil {
			t.Fatal(err)
		}
		for {
			if s := c.Audits.Status(name); s.State != audit.Running {
				return s
			}
			time.Sleep(time.Millisecond)
		}
	}
	if tap.forget() == 0 {
		t.Fatal("no call was recorded, so this test cannot fail")
	}
	s := ask("meter-01")
	if s.State != audit.Done || s.Report.Run != g.run || s.Report.Pending || s.Report.Stored == 0 || len(s.Report.Attacks) != 4 {
		t.Fatalf("%+v", s)
	}
	if a := s.Report.Attacks[3]; a.Name != audit.Readings || a.Updates != counted || counted < 2 {
		t.Errorf("%s from %d updates, %d were counted", a.Name, a.Updates, counted)
	}
	if s := ask("nobody"); s.State != audit.Failed || !strings.Contains(s.Error, "no update") {
		t.Errorf("an unknown client: %+v", s)
	}
	if s := c.Audits.Status("meter-01"); s.State != audit.None {
		t.Errorf("only the newest audit is kept: %+v", s)
	}
	said := func() int { tap.mu.Lock(); defer tap.mu.Unlock(); return len(tap.calls) }
	for said() < 3 {
		time.Sleep(time.Millisecond)
	}
	stop()
	tap.mu.Lock()
	defer tap.mu.Unlock()
	for _, call := range tap.calls {
		path, body, _ := strings.Cut(call, " ")
		var q loadstarv1.ExchangeRequest
		err := proto.Unmarshal([]byte(body), &q)
		q.Have, q.WaitMs = nil, 0 // the check-in contains nothing else
		if err != nil || !strings.HasSuffix(path, "/Exchange") || proto.Size(&q) > 0 {
			t.Fatalf("a call to %s: %v %v", path, &q, err)
		}
	}
	if err := c.Audits.Start("meter-01"); !errors.Is(err, audit.ErrIdle) {
		t.Errorf("after the agent has ended: %v", err)
	}
}

// silent fails the test if it is called.
type silent struct{ t *testing.T }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.t.Errorf("an audit called %s", r.URL)
	return nil, errors.New("no calls are allowed")
}

// TestAuditOfPending checks that an audit attacks exactly the update that the agent will send
// next, without a call to the server, and that it returns an error if there is no update.
func TestAuditOfPending(t *testing.T) {
	for name, plan := range map[string]settings{"windows": small("fedavg", settings{"partition": "head"}), "dense": dense(nil)} {
		t.Run(name, func(t *testing.T) {
			d := meters(t, 3)
			s := newStub(t)
			s.push = func(*loadstarv1.Result) (*loadstarv1.Received, error) {
				return nil, errors.New("not now")
			}
			dir := t.TempDir()
			c := config(t, "a", s.http.URL, dir, d)
			stop := start(t, c)
			s.give(s.task(t, "run", 4, plan, 9, "meter-02"))
			s.wait(t, "a push", func() bool { return len(s.pushes) > 0 })
			stop()

			c.Client.Transport = silent{t}
			report, err := Audit(t.Context(), c, "meter-02", ignore)
			if err != nil || report.Run != "run" || report.Round != 5 || !report.Pending || len(report.Attacks) != 2 {
				t.Fatalf("%+v, %v", report, err)
			}
			if _, err := Audit(t.Context(), c, "meter-01", ignore); !errors.Is(err, errNoUpdates) {
				t.Errorf("a client without updates: %v", err)
			}
			a, err := newAgent(c)
			if err != nil {
				t.Fatal(err)
			}
			defer a.store.Close()
			x, _, err := a.subject("meter-02")
			if err != nil {
				t.Fatal(err)
			}
			var u fed.Update
			again := client.Client{ID: "meter-02", Data: []series.Examples{x.Examples(x.Meter)}, Kept: x.Kept, First: x.First}
			if err := x.Setup.NewWorker(x.Kernel).Train(context.Background(), &again, x.Tasks[0], &u); err != nil {
				t.Fatal(err)
			}
			results, err := a.store.Results()
			if err != nil || len(results) != 1 {
				t.Fatal(results, err)
			}
			stored := make([]byte, results[0].Size)
			if err := a.store.Numbers(results[0].ID, stored, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(x.Setup.Rules.AppendUpdate(nil, &u), stored) {
				t.Error("the audited update is not the one that leaves")
			}
			if files, err := filepath.Glob(filepath.Join(dir, "blobs", "*")); err != nil || len(files) == 0 {
				t.Fatal(files, err)
			} else {
				for _, f := range files {
					a.blobs.drop(filepath.Base(f))
				}
			}
			if _, _, err := a.subject("meter-02"); !errors.Is(err, errNoUpdates) {
				t.Errorf("without weights: %v", err)
			}
		})
	}
}
