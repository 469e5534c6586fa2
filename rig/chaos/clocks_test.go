package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestClockImports checks the imports of the clock's source, which becomes a part of package
// time and can therefore import only a few packages. Only make clocks compiles it.
func TestClockImports(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "offset.go", testClock, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range f.Imports {
		if path := strings.Trim(i.Path.Value, `"`); path != "sync/atomic" && path != "syscall" && path != "unsafe" {
			t.Errorf("package time cannot import %s", path)
		}
	}
}
