// Package testkit has what tests of many packages share: how long to wait, how long to run, free
// ports, real readings.
package testkit

import (
	"testing"
	"time"
)

// Must ends the test if err is not nil.
func Must(t interface {
	Helper()
	Fatal(...any)
}, err error,
) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patient is longer than anything takes on a machine under heavy load.
const patient = 5 * time.Minute

// Eventually waits for a condition that another goroutine or process meets. It ends the test if it
// waits for minutes.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Within(t, patient, what, is)
}

// Within is Eventually with a limit.
func Within(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}
