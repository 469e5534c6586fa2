package operate

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func load(t *testing.T) *contextFile {
	t.Helper()
	f, err := loadContexts()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestContexts(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	f := load(t)
	if c, err := f.Get(""); err != nil || c != (storedContext{}) {
		t.Fatalf("without contexts: %v, %v", c, err)
	}
	if _, err := f.Get("home"); err == nil || !strings.Contains(err.Error(), "context add") {
		t.Errorf("%v does not say how to add a context", err)
	}
	home, work := storedContext{"https://localhost:7443", "/a"}, storedContext{"https://work.example:7443", "/b"}
	for name, c := range map[string]storedContext{"home": home, "work": work} {
		if err := load(t).Add(name, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := load(t).Add("../x", home); err == nil {
		t.Error("a path is taken as a name")
	}
	if err := load(t).Use("work"); err != nil {
		t.Fatal(err)
	}
	f = load(t)
	if c, err := f.Get(""); err != nil || c != work {
		t.Errorf("current: %v, %v", c, err)
	}
	if c, err := f.Get("home"); err != nil || c != home {
		t.Errorf("home: %v, %v", c, err)
	}
	if _, err := f.Get("hme"); err == nil || !strings.Contains(err.Error(), "did you mean home?") {
		t.Errorf("%v has no suggestion", err)
	}
	path := filepath.Join(dir, "loadstar", "config.yaml")
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := f.Remove("work"); err != nil {
		t.Fatal(err)
	}
	if f = load(t); f.Current != "" || !slices.Equal(f.Names(), []string{"home"}) {
		t.Errorf("after removing: %+v", f)
	}
	if err := os.WriteFile(path, []byte("contexts:\n  home: {sever: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadContexts(); err == nil || !strings.Contains(err.Error(), "did you mean server?") {
		t.Errorf("%v: a wrong key is not refused", err)
	}
}

// TestNoHome checks that a service without a home can call a server, and that an error explains
// why it cannot store a context.
func TestNoHome(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	f, err := loadContexts()
	if err != nil || len(f.Names()) != 0 {
		t.Fatalf("%v: %v", f, err)
	}
	if err := f.Add("a", storedContext{Server: "https://localhost:7443", Operator: "/x"}); err == nil || !strings.Contains(err.Error(), "HOME") {
		t.Error(err)
	}
}
