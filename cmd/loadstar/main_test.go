package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"loadstar": func() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the scripts in testdata/script, which contain commands and their
// expected output.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// TestFleetScripts runs scripts that test the fleet commands with a real server.
func TestFleetScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers and agents")
	}
	runScripts(t, "testdata/script/fleet")
}

func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "torch":
				_, err := os.Stat("/usr/lib/python3/dist-packages/torch")
				return err == nil, nil
			case "pkcs11":
				return pkcs11()
			}
			return false, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"await": await,
			"exits": exits,
		},
	})
}

// pkcs11 reports whether a software token and a program that uses it are installed. CI has
// both.
func pkcs11() (bool, error) {
	for _, path := range []string{"softhsm2-util", "pkcs11-tool", "openssl", "/usr/lib/softhsm/libsofthsm2.so"} {
		if _, err := exec.LookPath(path); err != nil {
			if _, err := os.Stat(path); err == nil {
				continue // a library is not a program
			}
			if os.Getenv("CI") != "" {
				return false, fmt.Errorf("%s is missing: install softhsm2, opensc and openssl", path)
			}
			return false, nil
		}
	}
	return true, nil
}

// await FILE REGEXP [VARIABLE] waits until the content of a file matches, and stores the
// first group of the match in a variable. Scripts use it to wait for the output of
// background commands, which goes to files.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: await FILE REGEXP [VARIABLE]")
	}
	want, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var content []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		content, err = os.ReadFile(ts.MkAbs(args[0]))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		ts.Check(err)
		if found := want.FindSubmatch(content); found != nil {
			if len(args) == 3 {
				ts.Setenv(args[2], string(found[1]))
			}
			return
		}
	}
	ts.Fatalf("%s does not match %q within a minute:\n%s", args[0], args[1], content)
}

// exits CODE PROGRAM ARGUMENT... runs a program and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGUMENT...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
