package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"loadstar/internal/disk"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// revocationsFile is the list of revocations in the server's folder. It is separate from
// the ledger, because a restored ledger can lack the newest revocations.
const revocationsFile = "revocations.jsonl"

const (
	// revocationsEvery is the interval at which a process looks for new revocations.
	revocationsEvery = 2 * time.Second
	// revocationsOverlap is the period before the newest event that a process reads again,
	// because gateways' clocks differ and a transaction may wait before it is committed.
	revocationsOverlap = 10 * time.Minute
	// revocationsScan is the interval at which a process reads all events, to find events from
	// machines whose clocks were far behind.
	revocationsScan = time.Hour
)

// revocations is the list of all revocations, in an append-only file.
type revocations struct {
	path  string
	known map[string]bool // IDs of the events in the file
	last  time.Time       // time of the newest event

	scanned time.Time // time at which all events of the ledger were last read
}

// readRevocations returns the events of a list, and its complete lines. torn is an incomplete
// last line, which either is being written, or was left by a writer that was killed.
func readRevocations(path string) (events []directory.Event, whole, torn []byte, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	end := bytes.LastIndexByte(text, '\n') + 1
	for line := range bytes.Lines(text[:end]) {
		e, err := decodeRevocation(line)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: line %d: %w", path, len(events)+1, err)
		}
		events = append(events, e)
	}
	return events, text[:end], text[end:], nil
}

// sumField is the beginning of a line's last field, which is the checksum of the object without
// this field. Lines from earlier versions have no checksum.
const sumField = `,"crc32c":"`

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeRevocation returns an event's line, with a checksum that detects damage. Otherwise a
// damaged line could name another agent, and a restore would not revoke the right agent.
func encodeRevocation(e directory.Event) ([]byte, error) {
	line, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(line[:len(line)-1], "%s%08x\"}\n", sumField, crc32.Checksum(line, castagnoli)), nil
}

func decodeRevocation(line []byte) (e directory.Event, err error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if i := bytes.LastIndex(line, []byte(sumField)); i >= 0 {
		object, sum := append(line[:i:i], '}'), line[i+len(sumField):]
		if string(sum) != fmt.Sprintf("%08x\"}", crc32.Checksum(object, castagnoli)) {
			return e, errors.New("it is damaged; copy the list from a backup or another server")
		}
		line = object
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("it is not a revocation: %w", err)
	}
	if e.ID == "" {
		return e, errors.New("it is not a revocation")
	}
	return e, nil
}

// writeRevocations writes complete lines into a folder.
func writeRevocations(dir string, whole []byte) error {
	return disk.WritePrivate(filepath.Join(dir, revocationsFile), func(f *os.File) error {
		_, err := f.Write(whole)
		return err
	})
}

// openRevocations opens a list, creates it if necessary, and repeats the revocations that the
// ledger lacks.
func (s *server) openRevocations(ctx context.Context) error {
	r := &revocations{path: s.Revocations, known: map[string]bool{}}
	events, whole, torn, err := readRevocations(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(r.path, nil, 0o600)
	}
	if err == nil {
		err = os.Chmod(r.path, 0o600)
	}
	if err == nil && len(torn) > 0 {
		err = os.Truncate(r.path, int64(len(whole))) // the line is written again from the ledger
	}
	if err != nil {
		return err
	}
	n, err := s.ledger.Directory.Reapply(ctx, events, time.Now())
	if err != nil {
		return err
	}
	if n > 0 {
		s.Log.Warn("the ledger lacked revocations, which were repeated; it was restored from an older backup", "revocations", n, "list", r.path)
	}
	for _, e := range events {
		r.note(e)
	}
	s.revoked = r
	return r.follow(ctx, s.ledger)
}

func (r *revocations) note(e directory.Event) {
	r.known[e.ID] = true
	if e.At.After(r.last) {
		r.last = e.At
	}
}

// follow adds new revocations in the ledger to the list.
func (r *revocations) follow(ctx context.Context, l *ledger.Ledger) error {
	since, now := time.Time{}, time.Now()
	scan := now.Sub(r.scanned) >= revocationsScan
	if !scan && !r.last.IsZero() {
		since = r.last
		if since.After(now) { // the event is from a machine whose clock is ahead
			since = now
		}
		since = since.Add(-revocationsOverlap)
	}
	const page = 1000
	for after := ""; ; {
		events, err := l.Directory.Revocations(ctx, since, after, page)
		if err != nil {
			return err
		}
		var lines bytes.Buffer
		var fresh []directory.Event
		for _, e := range events {
			if r.known[e.ID] {
				continue
			}
			line, err := encodeRevocation(e)
			if err != nil {
				return err
			}
			lines.Write(line)
			fresh = append(fresh, e)
		}
		if err := r.append(lines.Bytes()); err != nil {
			return err
		}
		for _, e := range fresh {
			r.note(e)
		}
		if len(events) < page {
			if scan {
				r.scanned = now
			}
			return nil
		}
		after = events[len(events)-1].ID
	}
}

func (r *revocations) append(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(appendWhole(f, lines), f.Close())
}

// appendWhole appends either all lines to a file or none. If the disk is full, a truncated line
// would make the next one unreadable.
func appendWhole(f listFile, lines []byte) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err = f.Write(lines); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.Truncate(size))
	}
	return nil
}

// listFile is an *os.File that is open for appending.
type listFile interface {
	io.WriteSeeker
	Sync() error
	Truncate(size int64) error
}

// run follows the ledger until ctx ends, and then once more.
func (r *revocations) run(ctx context.Context, s *server) error {
	tick := time.NewTicker(revocationsEvery)
	defer tick.Stop()
	for said := slog.LevelInfo; ; {
		ended := false
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		err := r.follow(last, s.ledger)
		cancel()
		level := slog.LevelInfo
		switch {
		case ledger.Unreachable(err): // without the database, nothing can be revoked
			level = slog.LevelWarn
		case err != nil:
			level = slog.LevelError
		}
		if level > said {
			s.Log.Log(ctx, level, "cannot add revocations to the list, retrying; a restore could undo them", "list", r.path, "error", err)
		}
		if said = level; ended {
			return nil
		}
	}
}
