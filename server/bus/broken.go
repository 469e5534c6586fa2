package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"loadstar/internal/backoff"
	"loadstar/internal/disk"
	"loadstar/internal/finding"
)

// ErrBroken means that a NATS server could not write to its disk and does not try again until
// it is started anew.
var ErrBroken = errors.New("the queue could not be written, and NATS writes again only after a new start")

// breaks reports whether an error in the log of a NATS server means that it does not write
// any more. The server has no other way to tell.
func breaks(text string) bool {
	lower := strings.ToLower(text)
	return strings.Contains(lower, "critical write error") || strings.Contains(lower, "will be disabled") ||
		strings.Contains(lower, "failed to store") && (strings.Contains(lower, "no space left") || strings.Contains(lower, "read-only") || strings.Contains(lower, "input/output error"))
}

// whyBroken returns ErrBroken with its reason, or nil.
func (l *serverLog) whyBroken(dir string) error {
	if why := l.broken.Load(); why != nil {
		return fmt.Errorf("%w (folder %s): %s", ErrBroken, dir, *why)
	}
	return nil
}

// wait returns ErrBroken when a server is broken and its disk can be written again, so that a
// process which ends then need not be started more than once. It returns nil if ctx ends.
func (l *serverLog) wait(ctx context.Context, dir string, free int64) error {
	for backoff.Sleep(ctx, time.Second) == nil {
		if err := l.whyBroken(dir); err != nil && hasRoom(dir, free) && writable(dir) {
			return err
		}
	}
	return nil
}

func writable(dir string) bool {
	var l finding.List
	disk.Writable(&l, "queue", dir)
	return len(l) == 1 && l[0].Level == finding.OK
}

// Wait returns when the embedded server has to be started again, which only a new process
// does, or when ctx ends.
func (b *Bus) Wait(ctx context.Context) error {
	if b.server == nil {
		<-ctx.Done()
		return nil
	}
	return b.server.log.wait(ctx, b.server.dir, b.server.free)
}
