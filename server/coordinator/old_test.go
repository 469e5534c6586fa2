package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"loadstar/internal/stateformat"
	"loadstar/internal/testkit"
	"loadstar/server/blob"
	"loadstar/server/ledger"
)

// oldSite opens the ledger and the blobs of a server built from commit 65e9244. That server
// was killed while two runs had an open round. Afterwards, data that no run needs was
// removed and the agent was renamed.
func oldSite(t *testing.T) *site {
	t.Helper()
	// The clock is a minute after the kill: the lead of the old server has expired, but its
	// leases have not.
	s := &site{T: t, dir: t.TempDir(), clock: time.UnixMilli(1_794_777_604_000), name: "next"}
	out, err := exec.Command("tar", "-xzf", "testdata/65e9244.tar.gz", "-C", s.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Ledger, err = ledger.Open(t.Context(), "sqlite:"+filepath.Join(s.dir, "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	s.blobs, err = blob.Files(filepath.Join(s.dir, "blobs"))
	testkit.Must(t, err)
	s.faults = &faults{Store: s.blobs}
	s.restart()
	return s
}

// TestOldRuns checks that runs of commit 65e9244 continue. The expected weights were
// computed by the coordinator of that commit in the same test.
func TestOldRuns(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("on other CPUs the Go compiler fuses multiplications and additions, which changes the last bits")
	}
	s := oldSite(t)
	s.turn()
	for _, c := range []struct {
		id      string
		version int64
		weights string
	}{
		{"m436yu53", 3, "51b4c20cfe7e1978e1c7781f634f3befe3bc5a11d298eb0c055712cb9cfb8b79"},
		{"3ckxw5bc", 13, "3e96209791ebf138ccd67a636b765b39787d97864d212443a916216e57d88d32"},
	} {
		const rounds = 3
		for range rounds {
			if n := s.count(s.tasks(c.id)...); n != 2 {
				t.Fatalf("%s: %d results were counted, want 2", c.id, n)
			}
			s.turn()
		}
		r := s.run(c.id)
		if r.State != ledger.Running || r.Version != c.version+rounds {
			t.Errorf("%s is %s at version %d, want version %d", c.id, r.State, r.Version, c.version+rounds)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(s.weights(c.id))); got != c.weights {
			t.Errorf("%s has the weights %s, want %s", c.id, got, c.weights)
		}
	}
}

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
	if want := "server state: written by a newer Loadstar (format 9, this one reads up to 2): upgrade"; !strings.Contains(log.String(), want) {
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
