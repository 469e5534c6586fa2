package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"loadstar/agent/identity"
	"loadstar/rig/product"
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
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, product.LastLine(strings.TrimSpace(problems.String())))
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
		if time.Now().After(end) || product.Sleep(ctx, 300*time.Millisecond) != nil {
			return "", fmt.Errorf("within %s: %w", limit, err)
		}
	}
}

// join makes agent i join, with retries, and starts it.
func (s *system) join(ctx context.Context, token string, i int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		if _, err := identity.Open(s.agentDir(i)); err == nil {
			return s.hosts[i].Start()
		}
		if err := s.shareSecret(i); err != nil {
			return err
		}
		_, err := s.command(ctx, "agent", "join", s.address, token, "--dir", s.agentDir(i), "--name", s.hosts[i].name)
		if err == nil {
			continue
		}
		if time.Now().After(end) || product.Sleep(ctx, 300*time.Millisecond) != nil {
			return fmt.Errorf("%s could not join within %s: %w", s.hosts[i].name, limit, err)
		}
	}
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
