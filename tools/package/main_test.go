package main

import (
	"os/exec"
	"testing"
	"time"
)

// TestVersion checks versions in the order in which dpkg must sort them.
func TestVersion(t *testing.T) {
	at := time.Date(2026, 11, 16, 8, 0, 0, 0, time.UTC)
	last := ""
	for _, x := range []struct{ described, want string }{
		{"f5a784a", "0~20261116080000.f5a784a"},
		{"f5a784a-dirty", "0~20261116080000.f5a784a.dirty"},
		{"0.1.0-dev-709-ge12278c", "0.1.0~dev+709.ge12278c"},
		{"0.1.0-dev-709-ge12278c-dirty", "0.1.0~dev+709.ge12278c+dirty"},
		{"v0.1.0", "0.1.0"},
		{"v0.2.0-rc1", "0.2.0~rc1"},
		{"v0.2.0", "0.2.0"},
		{"v0.2.0-14-gf5a784a", "0.2.0+14.gf5a784a"},
		{"v0.2.1", "0.2.1"},
		{"1.0.0", "1.0.0"},
	} {
		got := debianVersion(x.described, at)
		if got != x.want {
			t.Errorf("%s became %s, want %s", x.described, got, x.want)
		}
		if _, err := exec.LookPath("dpkg"); err == nil && last != "" {
			if err := exec.Command("dpkg", "--compare-versions", last, "lt", got).Run(); err != nil {
				t.Errorf("dpkg does not sort %s before %s", last, got)
			}
		}
		last = got
	}
}
