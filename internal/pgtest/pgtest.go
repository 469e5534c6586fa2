// Package pgtest runs a real PostgreSQL for tests, from the packages of the system.
// It writes through to disk as in production, so that a crash is worth surviving, and
// it sorts text as people do, not by bytes, as many installations do.
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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// ErrMissing says that PostgreSQL is not installed.
var ErrMissing = errors.New("PostgreSQL is not installed")

// Server is a cluster of databases in a folder, and the postmaster that serves it. It
// listens on a socket in the folder, and on a port of the loopback interface. Anyone
// on the machine may do anything with it. It is not safe for concurrent use.
type Server struct {
	bin, dir string
	port     int
	pick     bool // the port
	as       *syscall.Credential
	process  *os.Process
	ended    chan struct{} // closed when the postmaster has
}

// Start serves the cluster in a folder that others may enter, and makes it first
// where there is none. Port 0 is a free one.
func Start(dir string, port int) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, port: port, pick: port == 0}
	if len(s.socket()) > 100 {
		return nil, fmt.Errorf("pgtest: %s is too long a path for a socket", dir)
	}
	if err := s.own(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err != nil {
		// Libc's locales are often not there, ICU's are.
		err := s.run("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en", "--no-instructions", "--no-sync")
		if err != nil {
			return nil, err
		}
	}
	return s, s.Start()
}

// binaries returns the folder of the newest PostgreSQL: Debian has them apart, others
// in the path.
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

// own gives the folder to the user that the server runs as: it refuses to be root.
func (s *Server) own() error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("pgtest: root cannot run PostgreSQL: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	s.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, int(uid), int(gid))
}

func (s *Server) data() string   { return filepath.Join(s.dir, "data") }
func (s *Server) log() string    { return filepath.Join(s.dir, "log") }
func (s *Server) socket() string { return filepath.Join(s.dir, fmt.Sprintf(".s.PGSQL.%05d", s.port)) }

// command is one of the server's binaries, as its user.
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

// Start serves again after Crash or Stop, and returns when the server answers: where it
// did before, unless its port was free and is taken now.
func (s *Server) Start() error {
	for try := 1; ; try++ {
		if s.port == 0 || s.pick && try > 1 {
			port, err := freePort()
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.launch()
		if err == nil {
			return nil
		}
		if !s.pick || try == 5 { // somebody may have taken the port
			return err
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) launch() error {
	if s.process != nil {
		return errors.New("pgtest: the server runs")
	}
	out, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1",
		"-c", "fsync=on", "-c", "shared_buffers=16MB", "-c", "max_connections=150", "-c", "autovacuum_naptime=10min", "-c", "recovery_init_sync_method=syncfs")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // a killed test leaves no server behind
	begun, ended := make(chan error), make(chan struct{})
	go func() {
		// The death that is meant is that of the thread, so it is to last as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		begun <- cmd.Start()
		if cmd.Process != nil {
			cmd.Wait() //nolint:errcheck // the log says why
		}
	}()
	if err := <-begun; err != nil {
		return err
	}
	s.process, s.ended = cmd.Process, ended
	for deadline := time.Now().Add(time.Minute); ; {
		if err = s.run("pg_isready", "-q", "-h", s.dir, "-p", strconv.Itoa(s.port)); err == nil {
			return nil
		}
		select {
		case <-ended:
			s.process = nil
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
			err = errors.Join(err, s.Crash())
		}
		text, _ := os.ReadFile(s.log())
		return fmt.Errorf("pgtest: the server does not come up: %w\n%s", err, bytes.TrimSpace(text))
	}
}

// URL returns where a database is. One that is always there is called postgres.
func (s *Server) URL(database string) string {
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + url.QueryEscape(s.dir) + "&port=" + strconv.Itoa(s.port)
}

// Addr returns host and port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Create makes an empty database.
func (s *Server) Create(database string) error {
	return s.run("createdb", "-h", s.dir, "-p", strconv.Itoa(s.port), "-U", "postgres", database)
}

// Crash kills the postmaster and all its children at once, as a kernel without memory
// would.
func (s *Server) Crash() error {
	if s.process == nil {
		return nil
	}
	// Stopped, it can have no more of them.
	if err := s.process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	all, err := children(s.process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range append(all, s.process.Pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	<-s.ended
	s.process = nil
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
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
			return fmt.Errorf("pgtest: %d children outlive a kill", left)
		}
	}
}

// children returns the processes whose parent is the given one.
func children(of int) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, parent, ok := stat(pid); ok && parent == of {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// stat returns a process's state and parent.
func stat(pid int) (state string, parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	// Behind the name, which may hold anything.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(f[1])
	return f[0], parent, err == nil
}

// Stop ends the server in order, whoever is connected.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-s.ended:
		s.process = nil
		return nil
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("pgtest: the server does not stop"), s.Crash())
	}
}

// Cluster is a server for all tests of a binary, begun when the first of them needs
// it. The zero value is ready to use; TestMain stops it. It is safe for concurrent
// use.
type Cluster struct {
	mu      sync.Mutex
	server  *Server
	err     error
	dir     string
	schemas int
}

// Database returns the URL of what looks like a new, empty database: a schema, which
// is made much faster. Without PostgreSQL the test is skipped; in CI it fails.
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

// Single returns a server of a test's own, which it may crash.
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

// temporary starts a server in a new folder. A test's own would have too long a path.
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

// Stop ends the server, if there is one, and removes its folder.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	err := errors.Join(c.server.Crash(), os.RemoveAll(c.dir)) // in order it would first write what is thrown away
	c.server = nil
	return err
}
