package readings

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/series/store"
)

func inbox(t *testing.T) (*Inbox, string, *store.Store, *Intake) {
	t.Helper()
	i, s, _ := intake(t, func(c *Config) { c.Log = t.Logf })
	dir := filepath.Join(t.TempDir(), "inbox")
	b, err := OpenInbox(dir, i)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.root.Close() })
	return b, dir, s, i
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func pack(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// settle makes all files of an inbox complete, and reads them.
func settle(b *Inbox) {
	b.look()
	for name, l := range b.seen {
		l.since = l.since.Add(-settled)
		b.seen[name] = l
	}
	b.look()
}

func exists(paths ...string) bool {
	_, err := os.Lstat(filepath.Join(paths...))
	return err == nil
}

const oneRow = "unique_id,ds,y\na,2026-03-10T11:00:00Z,1\n"

func TestInbox(t *testing.T) {
	b, dir, s, _ := inbox(t)
	long := strings.Repeat("n", 250) + ".csv"
	bomb := pack(t, make([]byte, maxFile+1))
	files := map[string]struct {
		data []byte
		to   string // destination folder, or empty if the file stays
	}{
		"plain.csv":          {[]byte(oneRow), "done"},
		"packed.csv.gz":      {pack(t, []byte("unique_id,ds,y,revision\nb,2026-03-10T11:00:00Z,2,1\nb,2026-03-10T11:00:00Z,3,0\n")), "done"},
		"twice.csv":          {[]byte("unique_id,ds,y\na,2026-03-10T11:15:00Z,5\na,2026-03-10T11:15:00Z,6\n"), "done"},
		"weather-berlin.csv": {[]byte("ds,temperature\n2026-03-10T11:00:00Z,7\n"), "done"},
		"odd \"name\"\n.csv": {[]byte("unique_id,ds,y\na,2026-03-10T11:30:00Z,8\n"), "done"},
		"weather-bad.csv":    {[]byte("ds,Temperature\n2026-03-10T11:00:00Z,7\n"), "refused"},
		"bad.csv":            {[]byte("unique_id,ds,y\na,2026-03-10T11:45:00Z,9\na,2026\n"), "refused"},
		"unknown.csv":        {[]byte("unique_id,ds,y\nx,2026-03-10T11:45:00Z,9\n"), "refused"},
		"bomb.csv.gz":        {bomb, "refused"},
		"cut.csv.gz":         {pack(t, []byte(oneRow))[:30], "refused"},
		"not-packed.csv.gz":  {[]byte(oneRow), "refused"},
		"empty.csv":          {nil, "refused"},
		"table.xlsx":         {[]byte("PK"), "refused"},
		long[:230] + ".csv":  {[]byte(oneRow), "refused"},
		".hidden.csv":        {[]byte(oneRow), ""},
		"half.csv.part":      {[]byte(oneRow), ""},
		"rsync.csv.tmp":      {[]byte(oneRow), ""},
	}
	for name, f := range files {
		write(t, filepath.Join(dir, name), f.data)
	}
	secret := filepath.Join(t.TempDir(), "secret.csv")
	write(t, secret, []byte("unique_id,ds,y\na,2026-03-10T10:00:00Z,99\n"))
	if err := os.Symlink(secret, filepath.Join(dir, "link.csv")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.csv"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.look()
	if !exists(dir, "plain.csv") {
		t.Error("took a file that had just been written")
	}
	settle(b)
	for name, f := range files {
		if exists(dir, name) != (f.to == "") {
			t.Errorf("%.40q: still there %v", name, exists(dir, name))
		}
		if f.to != "" && len(name) < 200 && !exists(dir, f.to, name) {
			t.Errorf("%q is not in %s", name, f.to)
		}
		if why := exists(dir, f.to, name+".why.txt"); len(name) < 200 && why != (f.to == "refused" || name == "twice.csv") {
			t.Errorf("%q has a reason: %v", name, why)
		}
	}
	if got := fmt.Sprint(load(t, s, "a", start.Add(-2*time.Hour), 8)); got != "[NaN NaN NaN NaN 1 5 8 NaN]" {
		t.Errorf("a has %s", got) // the first row of a file is kept, and nothing of a bad file is stored
	}
	if got := load(t, s, "b", start.Add(-time.Hour), 1); got[0] != 2 {
		t.Errorf("b has %v", got)
	}
	if w, _, err := s.Weather(start.Unix()-3600, start.Unix(), start.Unix()); err != nil || w.Column("temperature")[0] != 7 {
		t.Errorf("weather %v: %v", w, err)
	}
	// Old files are deleted, and a new file may have the name of an earlier one.
	old := time.Now().Add(-keepDone - time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "done", "twice.csv"), old, old); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "plain.csv"), []byte("unique_id,ds,y\na,2026-03-10T11:00:00Z,4\n"))
	settle(b)
	if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 4 || exists(dir, "plain.csv") || exists(dir, "done", "twice.csv") {
		t.Errorf("the second file: %v", got)
	}
	if all, err := filepath.Glob(filepath.Join(dir, "done", "plain*")); err != nil || len(all) != 2 {
		t.Errorf("done has %v", all)
	}
}

// TestInboxAgain checks that a refused file is stored if it arrives again after its client
// is configured.
func TestInboxAgain(t *testing.T) {
	b, dir, s, i := inbox(t)
	row := []byte("unique_id,ds,y\nx,2026-03-10T11:00:00Z,3\na,2026-03-10T11:00:00Z,1\n")
	for _, want := range []string{"[NaN]", "[3]"} {
		write(t, filepath.Join(dir, "x.csv"), row)
		settle(b)
		if got := load(t, s, "x", start.Add(-time.Hour), 1); fmt.Sprint(got) != want {
			t.Errorf("x has %v, want %s", got, want)
		}
		i.SetClients(map[string]Client{"a": {}, "x": {}})
	}
}

// TestInboxStored checks that a file that was stored, but not moved before a crash, does not
// replace a later correction.
func TestInboxStored(t *testing.T) {
	b, dir, s, i := inbox(t)
	write(t, filepath.Join(dir, "x.csv"), []byte(oneRow))
	if _, err := b.store("x.csv"); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := post(t, i, "/v1/readings", "text/csv", "unique_id,ds,y\na,2026-03-10T11:00:00Z,2\n"); code != 200 {
		t.Fatal(code)
	}
	settle(b)
	if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 2 || !exists(dir, "done", "x.csv") {
		t.Errorf("after the crash: %v", got)
	}
}

func TestInboxFails(t *testing.T) {
	b, dir, s, _ := inbox(t)
	write(t, filepath.Join(dir, "x.csv"), []byte(oneRow))
	s.Close()
	settle(b)
	if !exists(dir, "x.csv") {
		t.Error("moved a file that was not stored")
	}
}

// TestInboxNotices checks that a file is read soon after it was renamed into the folder.
func TestInboxNotices(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for seconds")
	}
	b, dir, s, _ := inbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	time.Sleep(100 * time.Millisecond)
	write(t, filepath.Join(dir, ".x"), []byte(oneRow))
	if err := os.Rename(filepath.Join(dir, ".x"), filepath.Join(dir, "x.csv")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for !exists(dir, "done", "x.csv") {
		if time.Since(begun) > 15*time.Second {
			t.Fatal("not taken")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if time.Since(begun) < settled {
		t.Error("taken at once")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 1 {
		t.Errorf("a has %v", got)
	}
}
