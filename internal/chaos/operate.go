package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"loadstar/agent/identity"
)

// command runs a command of the binary under test as an operator.
func (s *system) command(ctx context.Context, args ...string) (string, error) {
	return command(ctx, s.bin, []string{"LOADSTAR_SERVER=" + s.address, "LOADSTAR_OPERATOR=" + s.operator}, 20*time.Second, args...)
}

func command(ctx context.Context, bin string, env []string, limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, lastLine(strings.TrimSpace(problems.String())))
	}
	return strings.TrimSpace(out.String()), nil
}

// insist retries a command until it succeeds or the time limit is over, since servers may
// be down.
func (s *system) insist(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	for end := time.Now().Add(limit); ; {
		out, err := s.command(ctx, args...)
		if err == nil {
			return out, nil
		}
		if time.Now().After(end) || !sleep(ctx, 300*time.Millisecond) {
			return "", fmt.Errorf("within %s: %w", limit, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// join makes agent i join, with retries, and starts it.
func (s *system) join(ctx context.Context, token string, i int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		if _, err := identity.Open(s.agentDir(i)); err == nil {
			return s.hosts[i].Start()
		}
		_, err := s.command(ctx, "agent", "join", s.address, token, "--dir", s.agentDir(i), "--name", s.hosts[i].name)
		if err == nil {
			continue
		}
		if time.Now().After(end) || !sleep(ctx, 300*time.Millisecond) {
			return fmt.Errorf("%s could not join within %s: %w", s.hosts[i].name, limit, err)
		}
	}
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// given holds the ports that freePort has returned. A part listens some time after it got
// its port, so a port that looks free may belong to a part that is still starting.
var given sync.Map

// freePort returns a free port below the range that the system uses for outgoing
// connections, so that the port is still free when a part restarts. It returns each port
// once.
func freePort() (int, error) {
	const first, ports = 20000, 10000
	last := errors.New("no free port")
	for range 100 {
		port := first + rand.IntN(ports)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, last
}
