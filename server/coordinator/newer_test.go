package coordinator

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"loadstar/internal/stateformat"
	"loadstar/server/blob"
	"loadstar/server/ledger"
)

// newerState is a store that returns each server state in a newer format.
type newerState struct{ blob.Store }

func (n newerState) Get(ctx context.Context, hash string) ([]byte, error) {
	b, err := n.Store.Get(ctx, hash)
	const magic = "LODSERVR"
	if bytes.HasPrefix(b, []byte(magic)) {
		b = stateformat.Format{Magic: magic, Version: 9}.Wrap([]byte("of another kind"))
	}
	return b, err
}

// TestNewerState checks what happens when an older coordinator takes over from a newer one.
// It must log the reason and leave the run unchanged, so that the newer coordinator can
// continue the run.
func TestNewerState(t *testing.T) {
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", "algorithm: fedadam\nrounds: 3\n"+small, 0)
	s.turn()
	s.count(s.tasks("run")...)
	s.turn()
	rounds := s.rounds("run")

	s.faults.Store = newerState{s.blobs}
	s.restart()
	var log bytes.Buffer
	s.current.Log = slog.New(slog.NewTextHandler(&log, nil))
	s.turn()
	if want := "server state: written by a newer Loadstar (format 9, this one reads up to 1): upgrade"; !strings.Contains(log.String(), want) {
		t.Errorf("logged %q, want %q", &log, want)
	}
	s.wantState("run", ledger.Running, "")
	if got := s.rounds("run"); got != rounds {
		t.Errorf("the rounds are now\n%swant\n%s", got, rounds)
	}

	s.faults.Store = s.blobs
	s.restart()
	for range 2 {
		s.count(s.tasks("run")...)
		s.turn()
	}
	s.wantState("run", ledger.Finished, "")
}
