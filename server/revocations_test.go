package server

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// TestRestoreKeepsRevocations restores a backup that was made before an agent was revoked and
// before another one joined. The first agent stays revoked. The error for the second does not
// state that it is revoked, so it waits.
func TestRestoreKeepsRevocations(t *testing.T) {
	st := newStation(t, nil)
	honest, thief := st.join("a"), st.join("b")
	var file bytes.Buffer
	testkit.Must(t, Backup(t.Context(), st.Dir, &file))
	late := st.join("c")
	lateThief := st.join("d")
	for _, agent := range []string{thief.id, lateThief.id} {
		_, err := st.operator.Revoke(t.Context(), &v1.RevokeRequest{Agent: agent})
		testkit.Must(t, err)
	}
	list := filepath.Join(st.Dir, revocationsFile)
	testkit.Eventually(st, "the revocations are listed", func() bool {
		events, _, _, err := readRevocations(list)
		return err == nil && len(events) == 2
	})
	st.stop()
	// A killed server leaves an incomplete line. The revocation in this line must not be
	// undone silently.
	whole, err := os.ReadFile(list)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(list, append(whole, `{"id": "half`...), 0o600))
	if _, err := Restore(t.Context(), bytes.NewReader(file.Bytes()), filepath.Join(t.TempDir(), "half"), list); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a list that is cut off: %v", err)
	}
	testkit.Must(t, os.WriteFile(list, whole, 0o600))

	dir := filepath.Join(t.TempDir(), "restored")
	done, err := Restore(t.Context(), bytes.NewReader(file.Bytes()), dir, list)
	testkit.Must(t, err)
	if done.Revocations != 2 {
		t.Errorf("%+v", done)
	}
	again := newStation(t, func(c *Config) { c.Dir = dir })
	for name, x := range map[string]struct {
		agent *raw
		want  connect.Code
	}{
		"honest": {honest, 0}, "revoked": {thief, connect.CodePermissionDenied},
		"joined later": {late, connect.CodeUnauthenticated}, "joined later and revoked": {lateThief, connect.CodePermissionDenied},
	} {
		_, err := v1.NewAgentServiceClient(x.agent.http, again.url, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{})
		if x.want == 0 && err != nil || x.want != 0 && connect.CodeOf(err) != x.want {
			t.Errorf("the agent that is %s: %v, want %v", name, err, x.want)
		}
	}
	again.stop()

	// Without the list, the revocation is undone. If the list is added later, the server repeats
	// the revocation when it starts, with PostgreSQL as well.
	undone := filepath.Join(t.TempDir(), "undone")
	_, err = Restore(t.Context(), bytes.NewReader(file.Bytes()), undone, "")
	testkit.Must(t, err)
	if revoked(t, undone, thief.id) {
		t.Error("a backup has revocations that were made after it")
	}
	text, err := os.ReadFile(list)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(filepath.Join(undone, revocationsFile), text, 0o644))
	newStation(t, func(c *Config) { c.Dir = undone }).stop()
	if !revoked(t, undone, thief.id) {
		t.Error("the server did not repeat the revocation")
	}
	if _, err := Restore(t.Context(), bytes.NewReader(file.Bytes()), filepath.Join(t.TempDir(), "x"), filepath.Join(dir, "ledger.db")); err == nil || !strings.Contains(err.Error(), "is not a revocation") {
		t.Errorf("a list that is none: %v", err)
	}
}

func revoked(t *testing.T, dir, agent string) bool {
	t.Helper()
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(dir, ledgerFile))
	testkit.Must(t, err)
	defer l.Close()
	c, err := l.Directory.Caller(t.Context(), agent)
	testkit.Must(t, err)
	return c.Revoked
}

var aRevocation = directory.Event{ID: "1", At: time.UnixMilli(1_700_000_000_000).UTC(), Actor: "user anna", Action: "revoke agent", Subject: "x"}

// TestRevocationsAreJSONLines checks the format of the list, which other programs also read.
func TestRevocationsAreJSONLines(t *testing.T) {
	line, err := encodeRevocation(aRevocation)
	testkit.Must(t, err)
	old := `{"id":"1","time":"2023-11-14T22:13:20Z","actor":"user anna","action":"revoke agent","subject":"x","detail":""`
	if want := old + `,"crc32c":"38590a1a"}` + "\n"; string(line) != want {
		t.Errorf("%s, want %s", line, want)
	}
	for _, text := range []string{string(line), old + "}\n"} { // earlier versions wrote no checksum
		if e, err := decodeRevocation([]byte(text)); err != nil || e != aRevocation {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// TestDamagedRevocations checks that every flipped bit in a list is detected or harmless, and
// that a truncated list contains the lines before the cut.
func TestDamagedRevocations(t *testing.T) {
	path := filepath.Join(t.TempDir(), revocationsFile)
	var text []byte
	var events []directory.Event
	for _, id := range []string{"1", "2", "3"} {
		e := aRevocation
		e.ID = id
		line, err := encodeRevocation(e)
		testkit.Must(t, err)
		text, events = append(text, line...), append(events, e)
	}
	for i := range text {
		for bit := range 8 {
			damaged := bytes.Clone(text)
			damaged[i] ^= 1 << bit
			testkit.Must(t, os.WriteFile(path, damaged, 0o600))
			if got, _, torn, err := readRevocations(path); err == nil && len(torn) == 0 && !slices.Equal(got, events) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, got)
			}
		}
		testkit.Must(t, os.WriteFile(path, text[:i], 0o600))
		if got, whole, torn, err := readRevocations(path); err != nil || len(whole)+len(torn) != i || !slices.Equal(got, events[:len(got)]) {
			t.Fatalf("the first %d bytes: %v, %q, %q, %v", i, got, whole, torn, err)
		}
	}
}

// TestRevocationsOfWrongClocks checks that a revocation by a machine whose clock is a day ahead
// does not keep later revocations out of the list, and that a revocation by a machine whose
// clock is behind is found when all events are read.
func TestRevocationsOfWrongClocks(t *testing.T) {
	st := newStation(t, nil)
	r := &revocations{path: filepath.Join(t.TempDir(), revocationsFile), known: map[string]bool{}}
	testkit.Must(t, os.WriteFile(r.path, nil, 0o600))
	for i, x := range []struct {
		off  time.Duration
		scan bool
		want int
	}{{24 * time.Hour, false, 1}, {0, false, 2}, {-time.Hour, false, 2}, {0, true, 4}} {
		testkit.Must(t, st.ledger.Directory.RevokeAgent(t.Context(), st.join(string(rune('a'+i))).id, "user anna", time.Now().Add(x.off)))
		if x.scan {
			r.scanned = r.scanned.Add(-revocationsScan)
		}
		testkit.Must(t, r.follow(t.Context(), st.ledger))
		if events, _, _, err := readRevocations(r.path); len(events) != x.want || err != nil {
			t.Errorf("revocation %d: %d are listed, want %d: %v", i, len(events), x.want, err)
		}
	}
}

// halfWritten is a file on a disk that becomes full.
type halfWritten struct{ *os.File }

func (f halfWritten) Write(p []byte) (int, error) {
	n, err := f.File.Write(p[:len(p)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

// TestRevocationsOnAFullDisk checks that a full disk does not leave an incomplete line in the
// list, which would make the next line invalid.
func TestRevocationsOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), revocationsFile)
	line, err := encodeRevocation(aRevocation)
	testkit.Must(t, err)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	testkit.Must(t, err)
	defer f.Close()
	testkit.Must(t, appendWhole(f, line))
	if err := appendWhole(halfWritten{f}, line); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	testkit.Must(t, appendWhole(f, line))
	if events, _, torn, err := readRevocations(path); len(events) != 2 || len(torn) > 0 || err != nil {
		t.Errorf("%d events, %q, %v", len(events), torn, err)
	}
}

// TestPruneWithWrongClock checks that a clock that is far ahead does not make the server delete
// everything.
func TestPruneWithWrongClock(t *testing.T) {
	st := newStation(t, nil)
	a := st.join("a")
	_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{})
	testkit.Must(t, err)
	s := &server{ledger: st.ledger}
	s.Log, s.Keep = slog.New(slog.DiscardHandler), ledger.Retention{Audit: time.Hour}
	testkit.Eventually(st, "the agent is seen", func() bool {
		seen, err := st.ledger.Directory.LastSeen(t.Context())
		return err == nil && !seen.IsZero()
	})
	for i, ahead := range []time.Duration{365 * 24 * time.Hour, 2 * time.Hour} {
		if n, err := s.pruneOnce(t.Context(), time.Now().Add(ahead)); n > 0 != (i == 1) || err != nil {
			t.Errorf("%v ahead: %d rows are deleted, %v", ahead, n, err)
		}
	}
}
