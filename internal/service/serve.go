// Package service contains the common parts of long-running services. They open ports, tell
// systemd that they are ready, answer errors of HTTP interfaces, and end with a context.
package service

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Serve calls serve, which must be a method of s such as s.Serve, and shuts s down when ctx
// ends. Requests in progress have the time of grace to finish; then they are cut off.
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
		_ = s.Close() // requests that do not end are cut off
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
