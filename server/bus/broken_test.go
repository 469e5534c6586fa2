package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBroken checks that a server that does not write any more is reported with its reason,
// and that Wait returns when the disk can be written.
func TestBroken(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"Filestore [S] Critical write error: write /d/2.blk: no space left on device":               true,
		"JetStream failed to store a msg on stream '$G > R': write /d/2.blk: read-only file system": true,
		"JetStream out of resources, will be DISABLED":                                              true,
		"JetStream failed to store a msg on stream '$G > R': maximum bytes exceeded":                false,
		"Error trying to connect to route (attempt 1): dial tcp: connection refused":                false,
	} {
		if got := breaks(text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	c := Config{Dir: t.TempDir(), MinFree: 1}
	b := open(t, c)
	soon, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := b.Wait(soon); err != nil {
		t.Errorf("a bus that works: %v", err)
	}
	b.server.log.Errorf("Filestore [S] Critical write error: %s", "no space left on device")
	if err := b.Healthy(); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), c.Dir) || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("healthy: %v", err)
	}
	if err := b.Wait(t.Context()); !errors.Is(err, ErrBroken) {
		t.Errorf("wait: %v", err)
	}
}

// TestMessagesThatReappear gives a stream messages that were answered before, as a loss of
// power can. They must be delivered again, so that the queue becomes empty.
func TestMessagesThatReappear(t *testing.T) {
	t.Parallel()
	c := Config{Dir: t.TempDir()}
	b := open(t, c)
	for i := range 3 {
		publish(t, b, fmt.Sprint(i), payload(fmt.Sprint(i), 1000))
	}
	shut(t, b)
	folders, err := filepath.Glob(filepath.Join(c.Dir, "jetstream", "*", "streams", streamName, "msgs"))
	if err != nil || len(folders) != 1 {
		t.Fatal(folders, err)
	}
	before := t.TempDir()
	if err := os.CopyFS(before, os.DirFS(folders[0])); err != nil {
		t.Fatal(err)
	}
	b = open(t, c)
	if seen := takeAll(t, b, func(*Delivery) {}); len(seen) != 3 {
		t.Fatalf("took %v", seen)
	}
	shut(t, b)
	if err := errors.Join(os.RemoveAll(folders[0]), os.CopyFS(folders[0], os.DirFS(before))); err != nil {
		t.Fatal(err)
	}
	b = open(t, c)
	seen := map[string]bool{}
	for end := time.Now().Add(patient); len(seen) < 3; {
		waiting, _, err := b.Depth(t.Context())
		if err != nil || waiting+int64(len(seen)) != 3 {
			t.Fatalf("%d messages wait: %v", waiting, err)
		}
		for _, d := range take(t, b, 10, time.Second) {
			seen[d.ID()] = true
			if err := d.Done(); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(end) {
			t.Fatal("the messages are never delivered")
		}
	}
	depthIs(t, b, 0, 0)
}
