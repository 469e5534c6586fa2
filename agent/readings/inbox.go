package readings

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"loadstar/series/store"
)

// Settings of the inbox.
const (
	settled      = 2 * time.Second  // a file that has not changed for this time is complete
	lookEvery    = 30 * time.Second // network drives do not send notifications
	keepDone     = 7 * 24 * time.Hour
	keepRefused  = 30 * 24 * time.Hour
	maxFile      = 32 << 20 // bytes, after decompression
	rowsAtOnce   = 4096
	maxInboxName = 200
	inboxNote    = "inbox"
)

// Inbox imports the files of a folder. Readings are in *.csv and *.csv.gz, with the columns
// unique_id, ds, y and optionally quality and revision. Weather is in weather*.csv, with
// ds, its own columns and optionally issued. Inbox moves a file to done/ when its rows are
// on disk. It moves an unreadable file to refused/, with a text file that gives the reason.
type Inbox struct {
	i    *Intake
	dir  string
	root *os.Root
	seen map[string]look
	// stuck contains the files that are stored but cannot be moved, with their state when
	// moving failed.
	stuck map[string]look
	// settled is the time for which a file must not have changed.
	settled time.Duration

	rename func(from, to string) error // replaced by a test
	stored func()                      // set by a test; called before a file is moved
}

// look is the state of a file, and the time since which it has had that state.
type look struct {
	size  int64
	mod   time.Time
	since time.Time
}

// OpenInbox creates the folder if necessary.
func OpenInbox(dir string, i *Intake) (*Inbox, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"done", "refused"} {
		if err := root.Mkdir(sub, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(err, root.Close())
		}
	}
	return &Inbox{i: i, dir: dir, root: root, seen: map[string]look{}, stuck: map[string]look{}, settled: settled, rename: root.Rename}, nil
}

// Run imports files until the context ends.
func (b *Inbox) Run(ctx context.Context) error {
	defer b.root.Close()
	var events <-chan fsnotify.Event
	var failures <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = watcher.Close() }() // nothing depends on the result
		err = watcher.Add(b.dir)
		events, failures = watcher.Events, watcher.Errors
	}
	if err != nil {
		b.i.c.Log("the inbox is checked only every %s: %v", lookEvery, err)
		events, failures = nil, nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	next, looked := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failures:
			b.i.c.Log("inbox: %v", err)
			continue // the next check finds files without a notification
		case <-events:
			// While a file is being written, checking the folder once per second is enough.
			soon := looked.Add(time.Second)
			if earliest := time.Now().Add(50 * time.Millisecond); soon.Before(earliest) {
				soon = earliest
			}
			if next.After(soon) {
				next = soon
				timer.Reset(time.Until(next))
			}
			continue
		case <-timer.C:
		}
		pause := lookEvery
		if b.look() {
			pause = b.settled + 50*time.Millisecond
		}
		looked = time.Now()
		next = looked.Add(pause)
		timer.Reset(pause)
	}
}

// look imports all complete files, oldest first. It reports whether to look again soon.
func (b *Inbox) look() (again bool) {
	if b.i.c.Clock() != nil {
		return false
	}
	files, again, err := b.ready()
	if err != nil {
		b.i.c.Log("inbox: %v", err)
		return false
	}
	for _, name := range files {
		err := b.take(name)
		if errors.Is(err, errStays) {
			b.i.c.Log("inbox: %q is not read again unless it changes: %v", name, err)
			b.stuck[name] = b.seen[name]
			continue
		}
		if errors.Is(err, errGrew) {
			again = true
			continue
		}
		if err != nil {
			b.i.c.Log("inbox: %q stays in the folder and is read later: %v", name, err)
			break // the disk is full, so later files would fail, too, and files must be stored in order
		}
		delete(b.seen, name)
	}
	b.tidy("done", keepDone)
	b.tidy("refused", keepRefused)
	return again
}

// ready lists the files that have not changed for a while, oldest first.
func (b *Inbox) ready() (files []string, again bool, err error) {
	dir, err := b.root.Open(".")
	if err != nil {
		return nil, false, err
	}
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, false, err
	}
	now := time.Now()
	current := map[string]look{}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".part") || strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, "~") {
			continue // somebody is still writing the file
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // the file was removed, or is a folder, a link or a device
		}
		l, ok := b.seen[name]
		if !ok || l.size != info.Size() || !l.mod.Equal(info.ModTime()) {
			l = look{info.Size(), info.ModTime(), now}
		}
		current[name] = l
		if old, ok := b.stuck[name]; ok && old.size == l.size && old.mod.Equal(l.mod) {
			continue
		}
		if now.Sub(l.since) < b.settled {
			again = true
			continue
		}
		files = append(files, name)
	}
	b.seen = current
	maps.DeleteFunc(b.stuck, func(name string, _ look) bool {
		_, ok := current[name]
		return !ok
	})
	slices.SortFunc(files, func(x, y string) int {
		return cmp.Or(current[x].mod.Compare(current[y].mod), strings.Compare(x, y))
	})
	return files, again, nil
}

// take stores a file and moves it. It returns an error if the file must be taken later.
func (b *Inbox) take(name string) error {
	answer, err := b.store(name)
	var syntax *syntaxError
	switch {
	case errors.As(err, &syntax), errors.Is(err, store.ErrNames), errors.Is(err, errUnreadable):
		return b.move(name, "refused", []byte(err.Error()+"\nNothing of this file was stored.\n"))
	case err != nil:
		return err
	case b.grew(name):
		return errGrew
	}
	to := "done"
	if answer.stored() == 0 && len(answer.Refused) > 0 {
		to = "refused"
	}
	if err := b.move(name, to, list(answer)); err != nil || len(answer.Refused) == 0 {
		return err
	}
	// The same file may be imported again once its clients are configured.
	_, err = b.i.c.Store.Put(b.i.c.Now(), nil, map[string][]byte{inboxNote: nil})
	return err
}

// errStays means that a file cannot be moved, for example because it belongs to another
// user and the folder is sticky. It must not delay other files.
var errStays = errors.New("the file cannot be moved")

// errGrew means that a file changed while Inbox read it.
var errGrew = errors.New("the file is still being written")

// grew reports whether a file has changed since it looked complete. Its rows are stored, and
// the next check imports the file again with its new rows.
func (b *Inbox) grew(name string) bool {
	if b.stored != nil {
		b.stored()
	}
	info, err := b.root.Lstat(name)
	l := b.seen[name]
	return err == nil && (info.Size() != l.size || !info.ModTime().Equal(l.mod))
}

// list describes the refused rows, or returns nil if there are none.
func list(a Answer) []byte {
	if len(a.Refused) == 0 {
		return nil
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "rows stored or known: %d; refused: %d\n", a.stored(), len(a.Refused)+a.MoreRefused)
	for _, r := range a.Refused {
		fmt.Fprintf(&text, "row %d: %s\n", r.Row, r.Reason)
	}
	if a.MoreRefused > 0 {
		fmt.Fprintf(&text, "and %d more\n", a.MoreRefused)
	}
	return text.Bytes()
}

// errUnreadable means that a file can never be read.
var errUnreadable = errors.New("the file cannot be read")

// store stores the rows of a file. It reads all rows once before it stores the first, so
// an unreadable file changes nothing.
func (b *Inbox) store(name string) (Answer, error) {
	base, packed := strings.CutSuffix(name, ".gz")
	if len(name) > maxInboxName || !strings.HasSuffix(base, ".csv") {
		return Answer{}, fmt.Errorf("%w: want a name that ends in .csv or .csv.gz and has at most %d bytes", errUnreadable, maxInboxName)
	}
	// If a FIFO or a link has replaced the file, opening must neither block nor lead elsewhere.
	f, err := b.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return Answer{}, fmt.Errorf("%w: %w", errUnreadable, err)
		}
		return Answer{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Answer{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return Answer{}, fmt.Errorf("%w: want a file of at most %d bytes, it has %d", errUnreadable, maxFile, info.Size())
	}
	if strings.HasPrefix(name, "weather") {
		in, err := unpack(f, packed)
		if err != nil {
			return Answer{}, err
		}
		answer, err := b.i.takeWeather("inbox", in, false)
		return answer, in.explain(err)
	}
	return b.storeReadings(f, packed)
}

func (b *Inbox) storeReadings(f *os.File, packed bool) (Answer, error) {
	hash := sha256.New()
	_, p := b.i.document("inbox")
	in, err := unpack(f, packed)
	if err != nil {
		return Answer{}, err
	}
	err = p.readCSV(io.TeeReader(in, hash), func(int, store.Reading, string) error { return nil })
	if err = in.explain(err); err != nil {
		return Answer{}, err
	}
	// The agent may crash between storing a file and moving it. The note then prevents the file
	// from being stored again and replacing later readings.
	id := hash.Sum(nil)
	if note, err := b.i.c.Store.Note(inboxNote); err != nil || bytes.Equal(note, id) {
		return Answer{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Answer{}, err
	}
	d, p := b.i.document("inbox")
	d.once = map[string][]uint64{}
	if in, err = unpack(f, packed); err != nil {
		return Answer{}, err
	}
	err = p.readCSV(in, func(row int, r store.Reading, why string) error {
		if err := d.add(row, r, why); err != nil || len(d.readings) < rowsAtOnce {
			return err
		}
		return d.store(nil)
	})
	if err == nil {
		err = d.store(map[string][]byte{inboxNote: id})
	}
	return d.answer.finish(), err
}

// limited reads a file that may be compressed, up to the maximum size.
type limited struct {
	r    io.Reader
	left int64
	err  error // the first error other than io.EOF
}

func unpack(f *os.File, packed bool) (*limited, error) {
	if !packed {
		return &limited{r: f, left: maxFile}, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return &limited{r: z, left: maxFile}, nil
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		if l.err == nil {
			l.err = fmt.Errorf("%w: it has more than %d bytes", errUnreadable, maxFile)
		}
		return 0, l.err
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) && l.err == nil {
		l.err = err
		if _, ok := l.r.(*gzip.Reader); ok {
			l.err = fmt.Errorf("%w: %w", errUnreadable, err)
		}
	}
	if l.err != nil {
		err = l.err
	}
	return n, err
}

// explain returns the file's error instead of the error that it caused.
func (l *limited) explain(err error) error {
	if err != nil && l.err != nil {
		return l.err
	}
	return err
}

// move moves a file and writes a text file beside it.
func (b *Inbox) move(name, to string, why []byte) error {
	target := filepath.Join(to, name)
	if len(target) > maxInboxName {
		target = filepath.Join(to, fmt.Sprintf("%x", sha256.Sum256([]byte(name))))
	}
	if _, err := b.root.Lstat(target); err == nil { // the name was used before
		ext := filepath.Ext(target)
		target = strings.TrimSuffix(target, ext) + "." + b.i.c.Now().UTC().Format("20060102T150405.000") + ext
	}
	if len(why) > 0 {
		if err := b.root.WriteFile(target+".why.txt", why, 0o640); errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %w", errStays, err)
		} else if err != nil {
			return err
		}
	}
	if err := b.rename(name, target); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", errStays, err)
	} else if err != nil {
		return err
	}
	now := time.Now()
	_ = b.root.Chtimes(target, now, now) // the time at which the file was read, which only tidying needs
	if to == "refused" {
		b.i.c.Log("inbox: refused %q: %s", name, strings.SplitN(string(why), "\n", 2)[0])
	}
	return nil
}

// tidy removes old files.
func (b *Inbox) tidy(sub string, keep time.Duration) {
	dir, err := b.root.Open(sub)
	if err != nil {
		return // the next call retries
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > keep {
			_ = b.root.Remove(filepath.Join(sub, e.Name())) // the next call retries
		}
	}
}
