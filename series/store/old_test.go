package store

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"loadstar/internal/testkit"
)

// oldFile is a file of format 1, written by the first version of the store.
const oldFile = "testdata/readings.format1.db.gz"

func fill(t *testing.T, s *Store) {
	t.Helper()
	at := noon.Unix() - quarter
	_, err := s.Put(noon, []Reading{
		{"Zähler", at - quarter, 1.5, OK, 0},
		{"Zähler", at, 2.5, Estimated, 4},
	}, map[string][]byte{"key": []byte("note")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutWeather(noon, []string{"temperature", "wind"}, []WeatherRow{{noon.Unix(), noon.Unix() - 3600, []float32{7, nan()}}}); err != nil {
		t.Fatal(err)
	}
}

// TestOldFile checks that a file of an earlier version can be read, and that writing the
// same readings again gives the same content.
func TestOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "readings.db")
	if testkit.NewFormat() {
		s := open(t, path)
		fill(t, s)
		s.Close()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(oldFile); os.IsNotExist(err) {
			if err := os.WriteFile(oldFile, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	packed, err := os.Open(oldFile)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	if s.Lost() != nil {
		t.Fatalf("lost %v", s.Lost())
	}
	if got := load(t, s, "Zähler", noon.Unix()-2*quarter, noon.Unix()); got[0] != 1.5 || got[1] != 2.5 {
		t.Errorf("readings %v", got)
	}
	if note, err := s.Note("key"); err != nil || string(note) != "note" {
		t.Errorf("note %q: %v", note, err)
	}
	if w, _, err := s.Weather(noon.Unix(), noon.Unix()+quarter, noon.Unix()); err != nil || w.Column("temperature")[0] != 7 {
		t.Errorf("weather %v: %v", w, err)
	}
	fresh := fresh(t)
	fill(t, fresh)
	if !bytes.Equal(content(t, s), content(t, fresh)) {
		t.Error("days are encoded differently: raise the version, and keep reading the old one")
	}
}
