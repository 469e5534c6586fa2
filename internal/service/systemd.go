package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// Ready notifies systemd that the service has started, sends keep-alive messages to its
// watchdog until ctx ends, and then reports that the service is stopping. The watchdog detects
// a process that no longer runs its goroutines. If a message cannot be sent, Ready only logs
// the error, because a service must not fail just because systemd is not listening.
func Ready(ctx context.Context, log *slog.Logger) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	say := func(message string) {
		if err := send(socket, message); err != nil {
			log.Warn("cannot notify the service manager", "error", err)
		}
	}
	say("READY=1")
	context.AfterFunc(ctx, func() { say("STOPPING=1") })
	every := watchdog()
	if every == 0 {
		return
	}
	go func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				say("WATCHDOG=1")
			}
		}
	}()
}

// send sends a message to a socket, which is named by a path or, after an @, by an abstract
// name.
func send(socket, message string) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte(message)); err != nil {
		return fmt.Errorf("%w, and closing: %w", err, c.Close())
	}
	return c.Close()
}

// watchdog returns half of the longest interval that systemd permits between messages from this
// process, or 0 if systemd expects none.
func watchdog() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0 // the setting belongs to a parent process
	}
	n, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || n < 2 {
		return 0
	}
	return time.Duration(n) * time.Microsecond / 2
}
