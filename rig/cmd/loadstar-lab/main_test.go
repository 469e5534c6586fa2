package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"loadstar/rig/product"
)

func TestMain(m *testing.M) {
	dir, err := withProduct()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testscript.Main(ended{m, dir}, map[string]func(){
		"loadstar-lab": func() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// withProduct builds loadstar and puts it on the PATH, for scripts and benchmarks that need it.
// Commands in scripts also run this program, with loadstar already on their PATH.
func withProduct() (dir string, err error) {
	if filepath.Base(os.Args[0]) == "loadstar-lab" {
		return "", nil
	}
	if dir, err = os.MkdirTemp("", "loadstar-lab-"); err != nil {
		return "", err
	}
	if err := product.Build(context.Background(), filepath.Join(dir, "loadstar")); err != nil {
		return dir, err
	}
	return dir, os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// ended runs the tests and then removes a folder.
type ended struct {
	*testing.M
	dir string
}

func (e ended) Run() int {
	defer os.RemoveAll(e.dir)
	return e.M.Run()
}

// TestScripts runs the scripts in testdata/script, which contain commands and their expected output.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(cond string) (bool, error) {
			_, err := os.Stat("/usr/lib/python3/dist-packages/" + cond)
			return err == nil && cond == "torch", nil
		},
	})
}
