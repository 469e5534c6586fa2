package ledger

import (
	"testing"
	"time"

	"loadstar/internal/testkit/pgtest"
)

// TestNotifications checks that a notification reaches listeners in this process and, with
// PostgreSQL, in others.
func TestNotifications(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		one, two := open(t, at), open(t, at)
		here, there := one.Woken(t.Context()), two.Woken(t.Context())
		heard := func(ch <-chan string) bool {
			for end := time.After(time.Minute); ; {
				// The listener may not have connected yet, so repeat the notification.
				one.Wake("run")
				select {
				case run := <-ch:
					if run == "run" {
						return true
					}
				case <-time.After(50 * time.Millisecond):
				case <-end:
					return false
				}
			}
		}
		if !heard(here) {
			t.Error("not heard in the same process")
		}
		if one.Store.SQLite {
			return
		}
		if !heard(there) {
			t.Error("not heard in another process")
		}
	})
}
