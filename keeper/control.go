package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/internal/service"
	v1 "loadstar/proto/loadstar/v1"
)

// Command is a command from the keeper's administrators. A running keeper receives it through a
// socket in its folder, which only the folder's owner can open.
type Command struct {
	Do    string    `json:"do"` // invite, revoke, reset, approve, members, log or show
	Agent string    `json:"agent,omitempty"`
	Plan  string    `json:"plan,omitempty"`
	Note  string    `json:"note,omitempty"`
	Uses  int64     `json:"uses,omitempty"`
	Until time.Time `json:"until,omitzero"`
	Last  int       `json:"last,omitempty"` // number of log entries
}

// Reply is the answer to a command. Fields that the command does not request are empty.
type Reply struct {
	Identity  string   `json:"identity"`
	Code      string   `json:"code,omitempty"`
	Members   []Member `json:"members,omitempty"`
	Entries   []Entry  `json:"entries,omitempty"`
	Statement []byte   `json:"statement,omitempty"` // KeeperStatement, without its signature
	Running   bool     `json:"running"`
	Error     string   `json:"error,omitempty"`
}

// Member is a member as shown to the keeper's administrators.
type Member struct {
	Agent   string    `json:"agent"`
	Cell    int64     `json:"cell"`
	Since   time.Time `json:"since"`
	Revoked bool      `json:"revoked"` // true also if the member has no key
}

// Control carries out a command.
func (k *Keeper) Control(c Command) (r Reply, err error) {
	r.Identity = k.pin.String()
	switch c.Do {
	case "invite":
		code, err := k.Invite(c.Uses, c.Until, c.Note)
		r.Code = code.String()
		return r, err
	case "revoke":
		return r, k.Revoke(c.Agent)
	case "reset":
		return r, k.Reset(c.Agent)
	case "approve":
		return r, k.Approve(c.Plan, c.Note)
	case "members":
		for _, m := range k.Members() {
			r.Members = append(r.Members, Member{m.Agent, m.Cell, time.Unix(m.Since, 0).UTC(), m.Revoked})
		}
		return r, nil
	case "log":
		r.Entries, err = k.Log(min(max(c.Last, 1), maxEntries))
		return r, err
	case "show":
		r.Statement, err = proto.Marshal(k.Statement())
		return r, err
	}
	return r, fmt.Errorf("unknown command %.40q", c.Do)
}

// ReadStatement returns the statement of a reply.
func (r *Reply) ReadStatement() (*v1.KeeperStatement, error) {
	s := new(v1.KeeperStatement)
	return s, proto.Unmarshal(r.Statement, s)
}

const (
	socketName = "control.sock"
	maxCommand = 64 << 10
	maxReply   = 256 << 20
	maxEntries = 100_000
)

// ServeControl accepts commands until ctx ends.
func (k *Keeper) ServeControl(ctx context.Context, dir string) error {
	path := filepath.Join(dir, socketName)
	// This process holds the folder's lock, so an existing socket was left behind by a keeper
	// that was killed.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("the socket for 'loadstar keeper' commands: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var c Command
		r, err := Reply{}, json.NewDecoder(http.MaxBytesReader(w, q.Body, maxCommand)).Decode(&c)
		if err == nil {
			r, err = k.Control(c)
		}
		if r.Running = true; err != nil {
			r.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(r) // the caller notices an incomplete reply
	})}
	return service.Serve(ctx, s, time.Second, func() error { return s.Serve(l) })
}

// Ask makes the keeper of a folder carry out a command, whether or not the keeper is running.
func Ask(ctx context.Context, dir string, c Command) (Reply, error) {
	if r, err := askRunning(ctx, filepath.Join(dir, socketName), c); err == nil || !errors.Is(err, errNotRunning) {
		return r, err
	}
	settings, err := ReadConfig(dir)
	if err != nil {
		return Reply{}, err
	}
	k, err := Open(dir, settings.Options())
	if err != nil {
		return Reply{}, err
	}
	r, err := k.Control(c)
	return r, errors.Join(err, k.Close())
}

var errNotRunning = errors.New("the keeper is not running")

func askRunning(ctx context.Context, socket string, c Command) (r Reply, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			err = fmt.Errorf("%w: %w", errNotRunning, err)
		}
		return conn, err
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://keeper/", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	a, err := t.RoundTrip(q)
	if err != nil {
		return r, err
	}
	defer a.Body.Close()
	if err := json.NewDecoder(io.LimitReader(a.Body, maxReply)).Decode(&r); err != nil {
		return r, err
	}
	if r.Error != "" {
		err = errors.New(r.Error)
	}
	return r, err
}
