package sqlstore

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestUnreachable(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "nobody")
	for at, want := range map[string]bool{
		"postgres://postgres@/x?host=" + nobody:    true,
		"postgres://postgres@127.0.0.1:1/x":        true,
		"postgres://postgres@127.0.0.1:nowhere/x":  false,
		"sqlite:" + filepath.Join(nobody, "no.db"): false,
	} {
		s, err := Open(t.Context(), at)
		if err == nil {
			s.Close()
			t.Fatalf("%s can be opened", at)
		}
		if Unreachable(err) != want {
			t.Errorf("%s: unreachable is %v, want %v: %v", at, !want, want, err)
		}
	}
}

// TestReachableWithoutDatabase checks that Unreachable returns false if the server answers that
// the database does not exist, because waiting does not help.
func TestReachableWithoutDatabase(t *testing.T) {
	at := strings.Replace(cluster.Database(t), "@/postgres?", "@/missing?", 1)
	s, err := Open(t.Context(), at)
	if err == nil {
		s.Close()
		t.Fatalf("%s can be opened", at)
	}
	if Unreachable(err) {
		t.Errorf("Unreachable is true for %v", err)
	}
}
