package server_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server"
)

// TestBackup checks that a server that is restored from a backup taken during a run finishes
// the run with the same agents.
func TestBackup(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: t.TempDir()}
	d := generated(t, 4)
	first, at := s.serve("server", "127.0.0.1:0", nil)
	o := s.operator("server", at)
	s.host("agent", s.join("agent", at, o), d, k)
	rounds := 30
	if testing.Short() {
		rounds = 10
	}
	plan := fmt.Sprintf("{algorithm: fedadam, partition: none, rounds: %d, client: {steps: 1, batch: 8}, evaluate: {every: 0}}", rounds)
	run, err := o.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: 4})
	if err != nil {
		t.Fatal(err)
	}
	for {
		r, err := o.GetRun(t.Context(), &v1.GetRunRequest{Run: run.Run})
		if err != nil {
			t.Fatal(err)
		}
		if r.Run.Version > 3 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	var file bytes.Buffer
	if err := server.Backup(t.Context(), filepath.Join(s.dir, "server"), &file); err != nil {
		t.Fatal(err)
	}
	first.stop()
	if _, err := server.Restore(t.Context(), bytes.NewReader(file.Bytes()[:file.Len()/2]), filepath.Join(s.dir, "half"), ""); err == nil || !strings.Contains(err.Error(), "not a complete backup") {
		t.Errorf("an incomplete backup: %v", err)
	}
	if _, err := server.Restore(t.Context(), &file, filepath.Join(s.dir, "restored"), ""); err != nil {
		t.Fatal(err)
	}
	s.serve("restored", at, nil)
	// Agents do not repeat turns that were counted after the backup, so a round that was
	// open at the time of the backup is abandoned and the run continues.
	got := s.finished(s.operator("restored", at), run.Run)
	abandoned := 0
	for _, r := range got.Rounds {
		switch {
		case r.State == "abandoned" && r.Lost == 4:
			abandoned++
		case r.State != "merged" || r.Counted != 4:
			t.Errorf("round %v", r)
		}
	}
	if len(got.Rounds) != rounds || abandoned > 3 || got.Run.Version != int64(rounds-abandoned) {
		t.Errorf("%d rounds, %d abandoned, version %d", len(got.Rounds), abandoned, got.Run.Version)
	}
}
