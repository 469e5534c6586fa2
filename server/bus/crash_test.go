package bus

import (
	"bytes"
	"fmt"
	"testing"
)

// If a process is killed while it publishes, the next process that opens the folder finds
// every accepted result once.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	accepted := map[string]bool{}
	seen := map[string]int{}
	for pass := range 3 {
		c := startChild(t, "publish", "DIR="+dir, "PREFIX="+fmt.Sprint(pass))
		ids := map[string]bool{}
		for c.lines.Scan() {
			ids[c.lines.Text()] = true
			if len(ids) == 300 {
				// The results whose ids the process has already printed must be in the
				// queue.
				_ = c.cmd.Process.Kill()
			}
		}
		c.kill()
		if len(ids) < 300 {
			t.Fatalf("only %d accepted", len(ids))
		}
		for id := range ids {
			accepted[id] = true
		}
		b := open(t, Config{Dir: dir})
		for id, n := range takeAll(t, b, func(d *Delivery) {
			if !bytes.Equal(d.Data(), payload(d.ID(), 4<<10)) {
				t.Errorf("%s is corrupt", d.ID())
			}
		}) {
			seen[id] += n
		}
		shut(t, b)
	}
	for id := range accepted {
		if seen[id] == 0 {
			t.Errorf("%s was accepted and is lost", id)
		}
	}
	for id, n := range seen {
		if n > 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	t.Logf("%d accepted, %d delivered", len(accepted), len(seen))
}
