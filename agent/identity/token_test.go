package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("ls1-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ argument, file, stdin, want, wrong string }{
		{"ls1-a", "", "", "ls1-a", ""},
		{"-", "", "ls1-stdin\n", "ls1-stdin", ""},
		{"", "-", " ls1-stdin ", "ls1-stdin", ""},
		{"", file, "", "ls1-file", ""},
		{"ls1-a", file, "", "", "not both"},
		{"", "", "", "", "--token-file"},
		{"-", "", "\n", "", "no join token"},
		{"", file + "x", "", "", "no such file"},
	} {
		got, err := Token(c.argument, c.file, strings.NewReader(c.stdin))
		if got != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
