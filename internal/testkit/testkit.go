// Package testkit contains helpers that tests of many packages share: waiting, lengths of tests,
// free ports and real readings.
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

// patient is longer than any wait, even on a machine under heavy load.
const patient = 5 * time.Minute

// Eventually waits until another goroutine or process meets a condition. It ends the test if
// this takes more than five minutes.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Within(t, patient, what, is)
}

// Within is like Eventually, with a time limit.
func Within(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}
