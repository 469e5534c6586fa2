// Package longtest lets a test choose how much work it does. Go's -short flag knows two
// lengths, and the kill, model and fleet tests need three:
//
//	-short                  make quick: no servers, no child processes
//	(default)               go test ./...: a few kills, a few model steps
//	LOADSTAR_TEST_LONG=1    make test-long: the counts that find rare mistakes
package longtest

import "os"

// Enabled reports whether the long form of the tests was asked for.
func Enabled() bool { return os.Getenv("LOADSTAR_TEST_LONG") != "" }

// Pick returns long if the long form of the tests was asked for, and usual otherwise.
func Pick[T any](usual, long T) T {
	if Enabled() {
		return long
	}
	return usual
}
