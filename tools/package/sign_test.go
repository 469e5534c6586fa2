package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSign signs the checksums of a release with minisign, as docs/how-to/install.md describes.
// It checks that a changed list and a wrong key are detected.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("minisign"); err != nil {
		if os.Getenv("CI") != "" || os.Getenv("LOADSTAR_CI_RUN") != "" {
			t.Fatal("install minisign")
		}
		t.Skip("needs minisign")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "VERSION=v1.2.3")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(out string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	for _, name := range []string{"loadstar", "other"} {
		must(run("minisign", "-G", "-W", "-p", name+".pub", "-s", name+".key")) // -W means without a password
	}
	sums := filepath.Join(dir, "SHA256SUMS")
	if err := os.WriteFile(sums, []byte("0123  loadstar_1.2.3_amd64.deb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../sign.sh")
	if err != nil {
		t.Fatal(err)
	}
	must(run(script, sums, filepath.Join(dir, "loadstar.key")))
	if out := must(run("minisign", "-V", "-p", "loadstar.pub", "-m", "SHA256SUMS")); !strings.Contains(out, "loadstar v1.2.3") {
		t.Errorf("%s", out)
	}
	if out, err := run("minisign", "-V", "-p", "other.pub", "-m", "SHA256SUMS"); err == nil {
		t.Errorf("another key: %s", out)
	}
	if err := os.WriteFile(sums, []byte("4567  loadstar_1.2.3_amd64.deb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run("minisign", "-V", "-p", "loadstar.pub", "-m", "SHA256SUMS"); err == nil {
		t.Errorf("a changed list: %s", out)
	}
}
