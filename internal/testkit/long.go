package testkit

import "os"

// Long reports whether the long tests are selected. Go's -short flag distinguishes two lengths, but
// the kill, model and fleet tests need three:
//
//	-short                  make quick: no servers, no child processes
//	(default)               go test ./...: a few kills, a few model steps
//	LOADSTAR_TEST_LONG=1    make test-long: counts that find rare bugs
func Long() bool { return os.Getenv("LOADSTAR_TEST_LONG") != "" }

// Pick returns long if the long tests are selected, and usual otherwise.
func Pick[T any](usual, long T) T {
	if Long() {
		return long
	}
	return usual
}
