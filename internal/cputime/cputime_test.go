package cputime

import (
	"runtime"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls, before := 0, Thread()
	got := Rate(10*time.Millisecond, func() {
		calls++
		for start := Thread(); Thread()-start < time.Millisecond; {
		}
	})
	// A call takes a millisecond, or slightly more if the thread is interrupted between
	// the readings of the clock.
	if got > 1000 || got < 100 {
		t.Errorf("%g calls per second of a function that takes a millisecond", got)
	}
	if spent := Thread() - before; calls < 5 || spent < 10*time.Millisecond {
		t.Errorf("%d calls in %v", calls, spent)
	}
}

func TestProcess(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, start := Process(), Thread()
	for Thread()-start < 20*time.Millisecond {
	}
	// The kernel counts CPU time in ticks, so allow an error of one tick, which is 10 ms.
	if got := Process() - before; got < 10*time.Millisecond {
		t.Errorf("the process used %v while a thread used 20ms", got)
	}
}
