package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"loadstar": func() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the command line as a user would: testdata/script holds the
// commands and what they must print.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(cond string) (bool, error) {
			if cond == "torch" {
				_, err := os.Stat("/usr/lib/python3/dist-packages/torch")
				return err == nil, nil
			}
			return false, nil
		},
	})
}
