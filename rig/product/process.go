package product

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"loadstar/internal/proc"
)

// Process is a running process with its log.
type Process struct {
	*proc.Child
	path string
}

// Start starts a command. All of its output is appended to the log. The command ends with this
// process.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = out, out
	child, err := proc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	return &Process{child, log}, nil
}

// Log returns all output of the process.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// LastLine returns the last line of a string.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// ErrEnded means that a process has ended by itself.
var ErrEnded = errors.New("the process has ended")

// Ready waits for up to a minute until the server with the given --watch address reports that it
// is ready. It stops if ended is closed. ended may be nil.
func Ready(ctx context.Context, watch string, ended <-chan struct{}) error {
	client := http.Client{Timeout: 5 * time.Second}
	for end := time.Now().Add(time.Minute); ; {
		r, err := client.Get("http://" + watch + "/readyz")
		if err == nil {
			text, _ := io.ReadAll(r.Body) // needed only for the message
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(strings.TrimSpace(string(text)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return ErrEnded
		case <-time.After(30 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("not ready within a minute: %w", err)
		}
	}
}

// Metrics returns the metrics of the server with the given --watch address. Keys contain the
// name and labels in the text format.
func Metrics(ctx context.Context, watch string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+watch+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		text := lines.Bytes()
		i := bytes.LastIndexByte(text, ' ')
		if i < 0 || text[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(string(text[i+1:]), 64); err == nil {
			all[string(text[:i])] = v
		}
	}
	return all, lines.Err()
}

// Sleep waits for the duration d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Eventually calls a function until it returns true or an error, or the time is up.
func Eventually(ctx context.Context, within time.Duration, is func() (bool, error)) (bool, error) {
	for end := time.Now().Add(within); ; {
		ok, err := is()
		if ok || err != nil {
			return ok, err
		}
		if time.Now().After(end) {
			return false, nil
		}
		if err := Sleep(ctx, 100*time.Millisecond); err != nil {
			return false, err
		}
	}
}
