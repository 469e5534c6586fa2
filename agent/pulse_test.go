package agent

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	loadstarv1 "loadstar/proto/loadstar/v1"
)

// lines collects what an agent logs at info level and above.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) wait(t *testing.T, want string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Contains(text, want) {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("the log does not say %q:\n%s", want, text)
		}
	}
}

// TestLog checks that an agent sums up rounds at info level instead of logging each one, and
// that it logs the server's return and the stop of a run.
func TestLog(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	log := &lines{}
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	quick := *c.tuning
	quick.pulseEvery = 20 * time.Millisecond
	c.tuning = &quick
	stop := start(t, c)
	s.give(s.task(t, "run", 0, small("fedavg", settings{"partition": "head"}), 9, "meter-00"))
	s.pushed(t, "run", 0)
	log.wait(t, "msg=trained run=run round=1")

	set := func(serve func(http.ResponseWriter, *http.Request) bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.serve = serve
	}
	set(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "away", http.StatusBadGateway)
		return true
	})
	log.wait(t, "cannot reach the server")
	set(nil)
	log.wait(t, "the server is back")

	s.mu.Lock()
	s.checkIn = func(_ *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		a.Verdicts = []*loadstarv1.Verdict{{Run: "run", Round: 1, Clients: []string{"meter-00"}, Outcome: loadstarv1.Outcome_OUTCOME_CLOSED, Reason: "stopped"}}
		return nil
	}
	s.mu.Unlock()
	log.wait(t, `msg="a run has ended" run=run reason=stopped`)
	time.Sleep(50 * time.Millisecond) // allows some more check-ins
	stop()
	text := log.wait(t, "stopped")
	if strings.Count(text, "a run has ended") != 1 {
		t.Errorf("the end of a run is logged more than once:\n%s", text)
	}
	for _, line := range []string{"msg=training", `msg="result counted"`} {
		if strings.Contains(text, line) {
			t.Errorf("single rounds are logged at the level info:\n%s", text)
		}
	}
}
