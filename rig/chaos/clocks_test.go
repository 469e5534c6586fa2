package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// The clock's source becomes a part of package time, which can import only few packages. Only
// make clocks compiles it.
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
