// Package service contains the common parts of long-running services. They open ports, notify
// systemd that they are ready, report errors in HTTP interfaces, and shut down when a context
// ends.
package service

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Serve calls serve, which must be a method of s such as s.Serve, and shuts s down when ctx
// ends. Requests in progress have the time grace to finish; then their connections are closed.
func Serve(ctx context.Context, s *http.Server, grace time.Duration, serve func() error) error {
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if s.Shutdown(end) != nil {
		_ = s.Close() // requests that do not end are aborted
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
