package proc

import (
	"runtime"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls, before := 0, ThreadTime()
	got := CPURate(10*time.Millisecond, func() {
		calls++
		for start := ThreadTime(); ThreadTime()-start < time.Millisecond; {
		}
	})
	// A call takes a millisecond, or slightly more if the thread is interrupted between
	// the readings of the clock.
	if got > 1000 || got < 100 {
		t.Errorf("%g calls per second of a function that takes a millisecond", got)
	}
	if spent := ThreadTime() - before; calls < 5 || spent < 10*time.Millisecond {
		t.Errorf("%d calls in %v", calls, spent)
	}
}

func TestProcess(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, start := CPUTime(), ThreadTime()
	for ThreadTime()-start < 20*time.Millisecond {
	}
	// The kernel counts CPU time in ticks, so allow an error of one tick, which is 10 ms.
	if got := CPUTime() - before; got < 10*time.Millisecond {
		t.Errorf("the process used %v while a thread used 20ms", got)
	}
}
