package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit/pgtest"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server"
	"loadstar/server/blob"
	"loadstar/server/examine"
	"loadstar/server/ledger"
	"loadstar/server/sqlstore"
)

func need(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// forward forwards connections from one address to another, like a name that now points to
// another machine.
func forward(t *testing.T, from, to string) {
	l, err := net.Listen("tcp", from)
	need(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer s.Close()
				go func() { _, _ = io.Copy(s, c); _ = s.Close() }() // ends when either side closes
				_, _ = io.Copy(c, s)
			}()
		}
	}()
}

// TestHourlyBackups takes backups of a server during a run, and restores the newest one on
// another machine with other folders, another port and another name. The same agents then
// finish the run there. Nothing in the backup is lost, and later revocations remain in effect.
func TestHourlyBackups(t *testing.T) {
	t.Run("folder", func(t *testing.T) { testHourlyBackups(t, false) })
	t.Run("PostgreSQL", func(t *testing.T) {
		if testing.Short() {
			t.Skip("starts PostgreSQL")
		}
		testHourlyBackups(t, true)
	})
}

func testHourlyBackups(t *testing.T, postgres bool) {
	t.Parallel()
	k, err := kernel.Default()
	need(t, err)
	s := &site{t: t, dir: t.TempDir()}
	var first, second *pgtest.Server
	database := func(of *pgtest.Server, name string) func(*server.Config) {
		return func(c *server.Config) {
			if of != nil {
				c.Database = of.URL(name)
			}
			c.Hosts = append(c.Hosts, map[bool]string{true: "old.example.org", false: "new.example.org"}[of == first])
		}
	}
	if postgres {
		first, second = pgtest.Single(t), pgtest.Single(t)
	}
	running, at := s.serve("server", "127.0.0.1:0", database(first, "postgres"))
	o := s.operator("server", at)
	s.host("agent", s.join("agent", at, o), generated(t, 4), k)
	s.join("stolen", at, o)
	const rounds, backedUp = 60, 6 // the newest backup contains at least six rounds
	plan := fmt.Sprintf("{algorithm: fedadam, partition: none, rounds: %d, client: {steps: 1, batch: 8}, evaluate: {every: 0}}", rounds)
	run, err := o.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: 4})
	need(t, err)
	old, restored := filepath.Join(s.dir, "server"), filepath.Join(s.dir, "srv", "loadstar", "data")
	into := filepath.Join(s.dir, "backups")
	copied := "" // name of the restored database
	for i := range 3 {
		s.reached(o, run.Run, int64(backedUp*(i+1)/3))
		if postgres {
			if i == 2 {
				copied = copyPostgres(t, first, second, old, restored, run.Run)
			}
			continue
		}
		b, err := server.BackupInto(t.Context(), old, into, "", 2, time.Now().Add(time.Duration(i)*time.Second))
		need(t, err)
		if b.Bytes == 0 || b.File == "" {
			t.Errorf("%+v", b)
		}
	}
	agents, err := o.ListAgents(t.Context(), &v1.ListAgentsRequest{})
	need(t, err)
	stolen := ""
	for _, a := range agents.Agents {
		if a.Name == "stolen" {
			stolen = a.Id
		}
	}
	_, err = o.Revoke(t.Context(), &v1.RevokeRequest{Agent: stolen})
	need(t, err)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		list, err := os.ReadFile(filepath.Join(old, "revocations.jsonl"))
		if err == nil && bytes.Contains(list, []byte(stolen)) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the list of revocations: %s, %v", list, err)
		}
	}
	running.stop()
	book := "sqlite:" + filepath.Join(old, "ledger.db")
	if postgres {
		book = first.URL("postgres")
	}
	stopped := storedRun(t, book, run.Run)

	need(t, os.MkdirAll(filepath.Dir(restored), 0o700))
	if postgres {
		list, err := os.ReadFile(filepath.Join(old, "revocations.jsonl"))
		need(t, err)
		need(t, os.WriteFile(filepath.Join(restored, "revocations.jsonl"), list, 0o600))
	} else {
		files, err := filepath.Glob(filepath.Join(into, "*.tar"))
		need(t, err)
		if len(files) != 2 {
			t.Fatalf("%d backups are left: %v", len(files), files)
		}
		f, err := os.Open(files[1])
		need(t, err)
		defer f.Close()
		done, err := server.Restore(t.Context(), f, restored, filepath.Join(old, "revocations.jsonl"))
		need(t, err)
		if done.Revocations != 1 {
			t.Errorf("%+v", done)
		}
	}
	_, there := s.serve("srv/loadstar/data", "127.0.0.1:0", database(second, copied))
	if there == at {
		t.Fatal("the same port")
	}
	forward(t, at, there)
	o = s.operator("srv/loadstar/data", there)
	got := s.finished(o, run.Run)
	abandoned := 0
	for _, r := range got.Rounds {
		switch {
		case r.State == "abandoned" && r.Round >= backedUp:
			abandoned++
		case r.State != "merged" || r.Counted != 4:
			t.Errorf("round %v", r)
		}
	}
	// Agents do not repeat turns that were counted after the backup, even in the round that
	// was open when the server stopped.
	if most := int(stopped.Version) - backedUp + 1; len(got.Rounds) != rounds || abandoned > most || got.Run.Version != int64(rounds-abandoned) {
		t.Errorf("%d rounds, %d abandoned, at most %d expected, version %d", len(got.Rounds), abandoned, most, got.Run.Version)
	}
	t.Logf("stopped at version %d, %d rounds abandoned, finished at version %d", stopped.Version, abandoned, got.Run.Version)
	agents, err = o.ListAgents(t.Context(), &v1.ListAgentsRequest{})
	need(t, err)
	for _, a := range agents.Agents {
		if a.Id == stolen && !a.Revoked {
			t.Error("an agent that was revoked after the backup is back")
		}
	}
}

// copyPostgres copies a server's database to another PostgreSQL server during a run, and then
// copies the server's keys and weights. It returns the name of the new database. If ten
// versions were created in the meantime, the weights of the copy's version have been deleted,
// and copyPostgres copies again.
func copyPostgres(t *testing.T, from, to *pgtest.Server, dir, into, run string) string {
	t.Helper()
	dump := filepath.Join(t.TempDir(), "dump.sql")
	for i := range 20 {
		name := fmt.Sprintf("copy%d", i)
		need(t, runPostgres("pg_dump", "--no-owner", "-f", dump, "-d", from.URL("postgres")))
		need(t, os.MkdirAll(into, 0o700))
		for _, part := range []string{"pki", "blobs"} {
			// cp keeps the permissions of the keys. It fails only for files that the server
			// deletes at the same time.
			_ = exec.Command("cp", "-a", filepath.Join(dir, part), into).Run()
		}
		need(t, to.Create(name))
		need(t, runPostgres("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, "-d", to.URL(name)))
		if _, err := os.Stat(filepath.Join(into, "blobs", blob.Name(storedRun(t, to.URL(name), run).Server))); err == nil {
			return name
		}
	}
	t.Fatal("no copy of the database has its weights")
	return ""
}

// storedRun reads a run from the database of a stopped server.
func storedRun(t *testing.T, database, id string) ledger.Run {
	t.Helper()
	store, _, err := sqlstore.OpenToLook(t.Context(), database)
	need(t, err)
	r, err := ledger.On(store).Run(t.Context(), id)
	need(t, errors.Join(err, store.Close()))
	return r
}

// TestMissingState checks that a run reports if its state is missing from the store, and
// continues when the file is restored.
func TestMissingState(t *testing.T) {
	k, err := kernel.Default()
	need(t, err)
	s := &site{t: t, dir: t.TempDir()}
	running, at := s.serve("server", "127.0.0.1:0", nil)
	o := s.operator("server", at)
	s.host("agent", s.join("agent", at, o), generated(t, 4), k)
	run, err := o.StartRun(t.Context(), &v1.StartRunRequest{Plan: "{algorithm: fedadam, partition: none, rounds: 30, client: {steps: 1, batch: 8}, evaluate: {every: 0}}", Clients: 4})
	need(t, err)
	s.reached(o, run.Run, 3)
	running.stop()
	hash := storedRun(t, "sqlite:"+filepath.Join(s.dir, "server", "ledger.db"), run.Run).Server
	file := filepath.Join(s.dir, "server", "blobs", blob.Name(hash))
	need(t, os.Rename(file, file+".away"))
	s.serve("server", at, nil)
	s.reason(o, run.Run, "waits: the store lacks what the run needs: loading the run: fetching the server's state: blob: not found: "+hash+"; restore")
	need(t, os.Rename(file+".away", file))
	if got := s.finished(o, run.Run); len(got.Rounds) != 30 || got.Run.Reason != "" {
		t.Errorf("%d rounds, reason %q", len(got.Rounds), got.Run.Reason)
	}
}

func runPostgres(name string, args ...string) error {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err == nil && len(found) > 0 {
		name = found[len(found)-1]
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// TestFailedBackup checks that a backup that is damaged or cannot be written does not replace a
// good backup, and that the failure is recorded.
func TestFailedBackup(t *testing.T) {
	s := &site{t: t, dir: t.TempDir()}
	p, _ := s.serve("server", "127.0.0.1:0", nil)
	p.stop()
	dir, into := filepath.Join(s.dir, "server"), filepath.Join(s.dir, "backups")
	now := time.Now()
	b, err := server.BackupInto(t.Context(), dir, into, "", 1, now)
	need(t, err)
	data, err := os.ReadFile(b.File)
	need(t, err)
	need(t, server.VerifyBackup(t.Context(), bytes.NewReader(data), s.dir))
	for name, wrong := range map[string][]byte{
		"cut": data[:len(data)/2],
		"bit": flipped(data, bytes.Index(data, []byte("SQLite format 3"))+5000),
	} {
		if err := server.VerifyBackup(t.Context(), bytes.NewReader(wrong), s.dir); err == nil {
			t.Errorf("%s: verified", name)
		}
	}
	need(t, os.RemoveAll(filepath.Join(dir, "pki"))) // a backup without the folder cannot be restored
	need(t, os.MkdirAll(filepath.Join(dir, "pki"), 0o700))
	if _, err := server.BackupInto(t.Context(), dir, into, "", 1, now.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "certificate authority") {
		t.Errorf("%v", err)
	}
	last, err := examine.LastBackup(dir)
	if err != nil || last.Failed == "" || last.File != b.File || !last.At.Equal(b.At) {
		t.Errorf("%+v: %v", last, err)
	}
	if left, err := filepath.Glob(filepath.Join(into, "*")); err != nil || len(left) != 2 || left[0] != b.File {
		t.Errorf("in the folder: %v, %v", left, err)
	}
	if hidden, err := filepath.Glob(filepath.Join(into, ".*")); err != nil || len(hidden) > 0 {
		t.Errorf("left behind: %v, %v", hidden, err)
	}
}

func flipped(data []byte, at int) []byte {
	out := bytes.Clone(data)
	out[at] ^= 1
	return out
}
