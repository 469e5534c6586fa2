// Package longtest selects how long tests run. Go's -short flag distinguishes two lengths,
// but the kill, model and fleet tests need three:
//
//	-short                  make quick: no servers, no child processes
//	(default)               go test ./...: a few kills, a few model steps
//	LOADSTAR_TEST_LONG=1    make test-long: counts that find rare bugs
package longtest

import "os"

// Enabled reports whether the long form of the tests is selected.
func Enabled() bool { return os.Getenv("LOADSTAR_TEST_LONG") != "" }

// Pick returns long if the long form of the tests is selected, and usual otherwise.
func Pick[T any](usual, long T) T {
	if Enabled() {
		return long
	}
	return usual
}
