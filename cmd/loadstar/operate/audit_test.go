package operate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "loadstar/proto/loadstar/v1"
)

// log is a server whose audit log has numbered events.
type log struct {
	v1.OperatorServiceClient
	events int
}

func (l *log) ListAudit(_ context.Context, q *v1.ListAuditRequest) (*v1.ListAuditResponse, error) {
	r := &v1.ListAuditResponse{}
	for i := range l.events {
		if id := fmt.Sprintf("%05d", i+1); id > q.After && len(r.Events) < int(q.Limit) {
			r.Events = append(r.Events, &v1.Event{Id: id, At: int64(i) * 1000, Actor: "user anna", Action: "stop run", Subject: "r"})
		}
	}
	return r, nil
}

// TestAuditExport checks that an export in three parts loses and repeats no event, even if one
// part is killed in the middle of a line.
func TestAuditExport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := &log{}
	for _, events := range []int{0, 3, 3, 2500} {
		l.events = events
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		after, err := lastEvent(f)
		if err != nil {
			t.Fatal(err)
		}
		if after == "" {
			after = "0"
		}
		if err := exportAudit(t.Context(), &operator{OperatorServiceClient: l}, after, f); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n != events {
			t.Errorf("%d lines after %d events", n, events)
		}
		if want := `{"id":"00001","time":"1970-01-01T00:00:00Z","actor":"user anna","action":"stop run","subject":"r","detail":""}` + "\n"; events > 0 && !strings.HasPrefix(string(text), want) {
			t.Errorf("%.200s", text)
		}
		if _, err := f.WriteString(`{"id":"0`); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for _, text := range []string{"something else\n", "a key without an end of line", "{\"id\":\"1\"}\nsomething else", "first\nhalf"} {
		other := filepath.Join(t.TempDir(), "other.txt")
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(other, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = lastEvent(f)
		f.Close()
		if left, _ := os.ReadFile(other); err == nil || string(left) != text {
			t.Errorf("a file with %q: %v, and it has %q left", text, err, left)
		}
	}
}
