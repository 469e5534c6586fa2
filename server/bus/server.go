package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"loadstar/internal/filelock"
)

// embedded is a NATS server inside this process.
type embedded struct {
	*server.Server
	lock *os.File
	log  *serverLog
	dir  string
	free int64 // number of bytes that must stay free on the disk

	mu      sync.Mutex
	checked time.Time // when the free space was last measured
	room    bool
}

// embed starts a server that only this process uses.
func embed(ctx context.Context, c Config, log *slog.Logger) (*embedded, error) {
	o := options(c.Dir, c.MaxMessage)
	o.ServerName = "embedded"
	o.DontListen = true
	s, text, lock, err := start(ctx, o, log)
	if used := inUse(""); errors.As(err, &used) {
		return nil, used // a mistake of the person who starts the server, told plainly
	} else if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	return &embedded{Server: s, log: text, lock: lock, dir: c.Dir, free: c.MinFree}, nil
}

// options returns the options that all our NATS servers share.
func options(dir string, maxMessage int) *server.Options {
	return &server.Options{
		NoSigs:                 true,
		DisableJetStreamBanner: true,
		MaxPayload:             int32(maxMessage + envelope),
		JetStream:              true,
		StoreDir:               dir,
		// By default NATS syncs to disk only every two minutes.
		SyncAlways: true,
		// The stream has its own limit. This limit must never be smaller than the stream,
		// because NATS would then not recover the stream's results.
		JetStreamMaxStore: 1 << 50,
	}
}

// inUse is the error about a folder that another process uses.
type inUse string

func (dir inUse) Error() string {
	return fmt.Sprintf("another process uses %s: a folder can have only one server; stop the other one, or use another folder", string(dir))
}

// start runs a server and returns when it accepts connections. The returned file holds the
// lock that prevents other processes from using the folder.
func start(ctx context.Context, o *server.Options, log *slog.Logger) (*server.Server, *serverLog, *os.File, error) {
	if err := os.MkdirAll(o.StoreDir, 0o700); err != nil {
		return nil, nil, nil, err
	}
	if err := os.Chmod(o.StoreDir, 0o700); err != nil { // it may have been there with other rights
		return nil, nil, nil, err
	}
	lock, err := os.OpenFile(filepath.Join(o.StoreDir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := filelock.Try(lock); err != nil {
		lock.Close()
		return nil, nil, nil, inUse(o.StoreDir)
	}
	s, err := server.NewServer(o)
	if err != nil {
		lock.Close()
		return nil, nil, nil, fmt.Errorf("NATS server: %w", err)
	}
	text := &serverLog{log: log, fatal: make(chan string, 1)}
	s.SetLoggerV2(text, false, false, false)
	s.Start()
	for !s.ReadyForConnections(20 * time.Millisecond) {
		select {
		case why := <-text.fatal:
			err = errors.New(why)
		case <-ctx.Done():
			err = context.Cause(ctx)
		default:
			continue
		}
		s.Shutdown()
		s.WaitForShutdown()
		lock.Close()
		return nil, nil, nil, fmt.Errorf("NATS server: %w", err)
	}
	return s, text, lock, nil
}

// stop shuts the server down and returns after all data is written.
func (e *embedded) stop() error {
	e.Shutdown()
	e.WaitForShutdown()
	return e.lock.Close()
}

func (e *embedded) healthy() error {
	if err := e.log.whyBroken(e.dir); err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	if h := e.Healthz(nil); h.Error != "" {
		return fmt.Errorf("bus: %s", h.Error)
	}
	return nil
}

// hasRoom reports whether the disk has enough free space. It measures at most once a
// second.
func (e *embedded) hasRoom() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.checked) > time.Second {
		e.checked = time.Now()
		e.room = hasRoom(e.dir, e.free)
	}
	return e.room
}

// serverLog forwards the NATS server's log to ours. NATS's notices become debug messages.
type serverLog struct {
	log    *slog.Logger
	fatal  chan string
	broken atomic.Pointer[string] // why the server does not write any more
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "NATS server", "text", strings.TrimSpace(fmt.Sprintf(format, v...)))
	}
}

func (l *serverLog) Tracef(string, ...any)           {}
func (l *serverLog) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Errorf notes the first error after which the server does not write any more.
func (l *serverLog) Errorf(format string, v ...any) {
	l.write(slog.LevelError, format, v)
	if text := fmt.Sprintf(format, v...); breaks(text) {
		l.broken.CompareAndSwap(nil, &text)
	}
}

func (l *serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Maximum payloads over") {
		return // do not log the warning about large payloads, which are intended
	}
	l.write(slog.LevelWarn, format, v)
}

// Fatalf does not exit, because a library must not end the process. It reports the error
// to start.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.write(slog.LevelError, format, v)
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
