package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"loadstar/agent/command"
)

// TestCommandLine runs command lines that end before an agent is opened.
func TestCommandLine(t *testing.T) {
	for _, x := range []struct {
		args, out, err string
		usage          bool
	}{
		{"", "model rollback CLIENT ", "", false},
		{"run -h", "  loadstar-agent run --data site.prepared\n", "", false},
		{"model pin --help", "loadstar-agent model pin CLIENT\n", "", false},
		{"version", version, "", false},
		{"runs", "", `"runs" is not a command`, true},
		{"model", "", `"model" is not a command`, true},
		{"run", "", "use --config or --data", true},
		{"run -config a -data b", "", "use either --config or --data", true},
		{"run -policy x=1 -data b", "", "x", true},
		{"run --workers two", "", "workers", true},
		{"accept", "", "missing arguments: want CLIENT", true},
		{"accept a -config agent.yaml b", "", `unexpected argument "b"`, true},
		{"join https://localhost:1", "", "missing argument TOKEN", true},
		{"status -config /nowhere/agent.yaml", "", "/nowhere/agent.yaml", false},
		{"import d.prepared -config /nowhere/agent.yaml", "", "/nowhere/agent.yaml", false}, // flags may follow arguments
	} {
		var out bytes.Buffer
		p := &command.Program{Name: "loadstar-agent", Version: version, Out: &out, Err: &out, In: &out}
		err := execute(t.Context(), p, strings.Fields(x.args))
		switch {
		case (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err):
			t.Errorf("%q: error %v, want %q", x.args, err, x.err)
		case errors.Is(err, command.ErrUsage) != x.usage:
			t.Errorf("%q: usage error %v: %v", x.args, !x.usage, err)
		case !strings.Contains(out.String(), x.out):
			t.Errorf("%q prints\n%s", x.args, out.String())
		}
	}
}

func TestNamed(t *testing.T) {
	rest, ok := named("model pin", []string{"model", "pin", "a"})
	if !ok || !slices.Equal(rest, []string{"a"}) {
		t.Errorf("%q, %v", rest, ok)
	}
	if _, ok := named("model pin", []string{"model"}); ok {
		t.Error("a group is a command")
	}
}
