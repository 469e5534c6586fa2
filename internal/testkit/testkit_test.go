package testkit

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// failing is a test that records its failure.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                        {}
func (f *failing) Fatal(a ...any)                 { f.said = fmt.Sprint(a...); panic(f) }
func (f *failing) Fatalf(format string, a ...any) { f.Fatal(fmt.Sprintf(format, a...)) }

// failure returns the failure that ends a test in f.
func failure(f func(t *failing)) (said string) {
	t := &failing{}
	defer func() {
		if r := recover(); r != nil && r != any(t) {
			panic(r)
		}
		said = t.said
	}()
	f(t)
	return ""
}

func TestMust(t *testing.T) {
	if got := failure(func(f *failing) { Must(f, errors.New("broken")) }); got != "broken" {
		t.Errorf("%q", got)
	}
	if got := failure(func(f *failing) { Must(f, nil) }); got != "" {
		t.Errorf("%q", got)
	}
}

func TestWithin(t *testing.T) {
	n := 0
	if got := failure(func(f *failing) { Eventually(f, "three", func() bool { n++; return n == 3 }) }); got != "" || n != 3 {
		t.Errorf("%q after %d", got, n)
	}
	never := func() bool { return false }
	if got := failure(func(f *failing) { Within(f, time.Millisecond, "the door opens", never) }); got != "the door opens: not within 1ms" {
		t.Errorf("%q", got)
	}
}
