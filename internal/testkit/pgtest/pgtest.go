// Package pgtest runs a real PostgreSQL server for tests, using the system's installation. As in
// production, the server syncs writes to disk, so that crash tests are meaningful. It also
// uses a linguistic collation instead of byte order.
package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"loadstar/internal/proc"
	"loadstar/internal/testkit"
)

// ErrMissing means that PostgreSQL is not installed.
var ErrMissing = errors.New("PostgreSQL is not installed")

// Server is a PostgreSQL database cluster in a folder, and its main process, the
// postmaster. It listens on a socket in the folder and on a loopback port, without
// authentication. A Server is not safe for concurrent use.
type Server struct {
	bin, dir string
	port     int
	tls      bool     // listen with a certificate
	settings []string // further settings, as NAME=VALUE
	env      []string // further variables of the environment
	as       *syscall.Credential
	child    *proc.Child // nil while the server is down
}

// Start starts a server on the cluster in a folder, which other users must be able to
// enter. It creates the cluster if necessary. Port 0 means any free port.
func Start(dir string, port int, options ...Option) (*Server, error) {
	s, err := prepare(dir, port, options)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err != nil {
		if err := s.create(); err != nil {
			return nil, err
		}
	}
	return s, s.Start()
}

// create creates the cluster. It uses a locale of ICU, because libc's locales are often not
// installed.
func (s *Server) create(more ...string) error {
	return s.run("initdb", append(more, "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en", "--no-instructions", "--no-sync", "--data-checksums")...)
}

// Option changes how a server runs.
type Option func(*Server)

// With adds settings, each as NAME=VALUE.
func With(settings ...string) Option {
	return func(s *Server) { s.settings = append(s.settings, settings...) }
}

// Env adds variables to the server's environment, each as NAME=VALUE.
func Env(variables ...string) Option {
	return func(s *Server) { s.env = append(s.env, variables...) }
}

// Installed returns the folder with PostgreSQL's binaries and, if this process runs as root,
// the user that runs them.
func Installed() (bin string, as *syscall.Credential, err error) {
	if bin, err = binaries(); err == nil {
		as, err = unprivileged()
	}
	return bin, as, err
}

// prepare returns a server that owns its folder and is not running yet.
func prepare(dir string, port int, options []Option) (*Server, error) {
	bin, as, err := Installed()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, as: as, dir: dir, port: port}
	for _, o := range options {
		o(s)
	}
	if len(s.socket()) > 100 {
		return nil, fmt.Errorf("pgtest: the path %s is too long for a socket", dir)
	}
	if as == nil {
		return s, nil
	}
	return s, os.Chown(dir, int(as.Uid), int(as.Gid))
}

// binaries returns the folder with the newest PostgreSQL binaries. Debian has a folder for
// each version. On other systems the binaries are on the PATH.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	best, newest := "", -1
	for _, path := range found {
		dir := filepath.Dir(path)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && v > newest {
			best, newest = dir, v
		}
	}
	if best == "" {
		path, err := exec.LookPath("postgres")
		if err != nil {
			return "", ErrMissing
		}
		best = filepath.Dir(path)
	}
	return best, nil
}

// unprivileged returns the user that runs PostgreSQL if this process runs as root, because
// PostgreSQL refuses to run as root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("pgtest: root cannot run PostgreSQL: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (s *Server) data() string   { return filepath.Join(s.dir, "data") }
func (s *Server) log() string    { return filepath.Join(s.dir, "log") }
func (s *Server) socket() string { return filepath.Join(s.dir, fmt.Sprintf(".s.PGSQL.%05d", s.port)) }

// command returns a command that runs one of PostgreSQL's binaries as the server's user.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

func (s *Server) run(name string, args ...string) error {
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: %s: %w\n%s", name, err, out)
	}
	return nil
}

// Start starts the server, including after Crash or Stop, and returns when it accepts
// connections.
func (s *Server) Start() error {
	if s.port == 0 {
		port, err := testkit.FreePort()
		if err != nil {
			return err
		}
		s.port = port
	}
	return s.launch()
}

func (s *Server) launch() error {
	if s.child != nil {
		return errors.New("pgtest: the server is already running")
	}
	out, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1",
		"-c", "fsync=on", "-c", "shared_buffers=16MB", "-c", "max_connections=150", "-c", "autovacuum_naptime=10min", "-c", "recovery_init_sync_method=syncfs")
	if s.tls {
		cmd.Args = append(cmd.Args, "-c", "ssl=on")
	}
	for _, x := range s.settings {
		cmd.Args = append(cmd.Args, "-c", x)
	}
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Stdout, cmd.Stderr = out, out
	// SIGQUIT is PostgreSQL's immediate shutdown, so a killed test leaves no server behind.
	child, err := proc.Start(cmd, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	s.child = child
	for deadline := time.Now().Add(3 * time.Minute); ; {
		if err = s.run("pg_isready", "-q", "-h", s.dir, "-p", strconv.Itoa(s.port)); err == nil {
			return nil
		}
		select {
		case <-child.Done():
			s.child = nil
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
			err = errors.Join(err, s.Crash())
		}
		text, _ := os.ReadFile(s.log())
		return fmt.Errorf("pgtest: the server does not start: %w\n%s", err, bytes.TrimSpace(text))
	}
}

// UseTLS configures the server with a certificate and its key, which are read from files, and
// restarts the server.
func (s *Server) UseTLS(cert, key string) error {
	if err := s.Stop(); err != nil {
		return err
	}
	for name, from := range map[string]string{"server.crt": cert, "server.key": key} {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to := filepath.Join(s.data(), name)
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return err
		}
		if s.as != nil {
			if err := os.Chown(to, int(s.as.Uid), int(s.as.Gid)); err != nil {
				return err
			}
		}
	}
	s.tls = true
	return s.Start()
}

// URL returns the URL of a database. The database postgres always exists.
func (s *Server) URL(database string) string {
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + url.QueryEscape(s.dir) + "&port=" + strconv.Itoa(s.port)
}

// Addr returns the host and port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Create creates an empty database.
func (s *Server) Create(database string) error {
	return s.run("createdb", "-h", s.dir, "-p", strconv.Itoa(s.port), "-U", "postgres", database)
}

// Crash kills the postmaster and all its children with SIGKILL, as the kernel does when
// memory runs out.
func (s *Server) Crash() error {
	if s.child == nil {
		return nil
	}
	// A stopped postmaster cannot start more children.
	if err := s.child.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	all, err := children(s.child.Pid())
	if err != nil {
		return err
	}
	for _, pid := range append(all, s.child.Pid()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	<-s.child.Done()
	s.child = nil
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, pid := range all {
			if state, _, ok := stat(pid); ok && state != "Z" {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("pgtest: %d children survived the kill", left)
		}
	}
}

// children returns the child processes of a process.
func children(of int) ([]int, error) {
	return proc.Find(func(pid int) bool {
		_, parent, ok := stat(pid)
		return ok && parent == of
	})
}

// stat returns a process's state and parent.
func stat(pid int) (state string, parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	// Skip the program's name in parentheses, which may contain any character.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(f[1])
	return f[0], parent, err == nil
}

// Stop shuts the server down and disconnects all clients.
func (s *Server) Stop() error {
	if s.child == nil {
		return nil
	}
	if err := s.child.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-s.child.Done():
		s.child = nil
		return nil
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("pgtest: the server does not stop"), s.Crash())
	}
}

// Cluster is a server shared by all tests of a binary. It starts with the first test that
// needs it; TestMain must stop it. The zero value is ready to use. It is safe for
// concurrent use.
type Cluster struct {
	mu      sync.Mutex
	server  *Server
	err     error
	dir     string
	schemas int
}

// Database returns a URL for a new, empty schema, which is created much faster than a database.
// If PostgreSQL is not installed, the test is skipped, or fails in CI.
func (c *Cluster) Database(t testing.TB) string {
	t.Helper()
	at, err := c.database()
	if errors.Is(err, ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (c *Cluster) database() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil && c.err == nil {
		c.server, c.dir, c.err = temporary()
	}
	if c.err != nil {
		return "", c.err
	}
	c.schemas++
	name := fmt.Sprintf("test%d", c.schemas)
	err := c.server.run("psql", "-X", "-q", "-h", c.server.dir, "-p", strconv.Itoa(c.server.port), "-U", "postgres", "-c", "CREATE SCHEMA "+name)
	return c.server.URL("postgres") + "&search_path=" + name, err
}

// Single returns a server for one test, which may crash it.
func Single(t testing.TB) *Server {
	t.Helper()
	s, dir, err := temporary()
	if errors.Is(err, ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Crash(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// temporary starts a server in a new folder. A path from t.TempDir can be too long for a
// socket.
func temporary() (*Server, string, error) {
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, "", err
	}
	s, err := Start(dir, 0)
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	return s, dir, nil
}

// Main runs the tests of a package, stops the server, and fails if a goroutine is left. A
// TestMain must call it last.
func (c *Cluster) Main(m *testing.M) {
	code := m.Run()
	if err := c.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// stop stops the server if it is running, and removes its folder.
func (c *Cluster) stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	err := errors.Join(c.server.Crash(), os.RemoveAll(c.dir)) // a clean shutdown would write data that is deleted next
	c.server = nil
	return err
}
