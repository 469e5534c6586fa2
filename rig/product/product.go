// Package product builds, finds and starts the program loadstar, which the rig tests from outside.
package product

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Folder returns the folder of the product's module.
func Folder(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "loadstar").Output()
	if err != nil {
		return "", fmt.Errorf("find the module loadstar: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// Build builds the program, with additional flags for go build.
func Build(ctx context.Context, path string, flags ...string) error {
	dir, err := Folder(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", path}, flags...), "./cmd/loadstar")...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build loadstar: %w\n%s", err, text)
	}
	return nil
}

// Find returns the path of an existing program, in this program's folder or on the PATH.
func Find() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), "loadstar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if path, err = exec.LookPath("loadstar"); err != nil {
		return "", fmt.Errorf("loadstar is neither in the folder of %s nor on the PATH: %w", self, err)
	}
	return path, nil
}
