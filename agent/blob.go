package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// blobsKept is how many blobs stay on disk: those of a few versions.
const blobsKept = 8

// blobs fetches plans, weights and control variates by their hashes, each once: what
// came stays on disk, also half of it. The folder is used by one goroutine at a time.
type blobs struct {
	dir    string
	server string
	client *http.Client
	stall  time.Duration
}

// errBlob says that a blob will not become better by waiting.
var errBlob = errors.New("blob")

// prepare makes the folder.
func (b *blobs) prepare() error { return os.MkdirAll(b.dir, 0o700) }

// get returns a blob of up to so many bytes; of exactly as many if exact.
func (b *blobs) get(ctx context.Context, hash string, size int64, exact bool) ([]byte, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size || hash != strings.ToLower(hash) {
		return nil, fmt.Errorf("%w: %.80q is no SHA-256", errBlob, hash)
	}
	path := filepath.Join(b.dir, hash)
	if data, err := b.read(path, hash, size, exact); err == nil {
		now := time.Now()
		os.Chtimes(path, now, now) //nolint:errcheck // at worst it is fetched again
		return data, nil
	}
	os.Remove(path)
	b.tidy(hash)
	if err := b.fetch(ctx, path+".part", hash, size); err != nil {
		return nil, err
	}
	data, err := b.read(path+".part", hash, size, exact)
	if err != nil {
		os.Remove(path + ".part")
		return nil, err
	}
	return data, os.Rename(path+".part", path)
}

// read returns a file that is what it should be.
func (b *blobs) read(path, hash string, size int64, exact bool) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if n := info.Size(); n > size || exact && n != size {
		return nil, fmt.Errorf("%w %s has %d bytes instead of %d", errBlob, hash, n, size)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("%w %s: what came has another hash", errBlob, hash)
	}
	return data, nil
}

// fetch completes a file that may have begun, and never lets it grow beyond its size.
func (b *blobs) fetch(ctx context.Context, path, hash string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return storeError(err)
	}
	defer f.Close()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return storeError(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(b.stall, func() { cancel(errors.New("nothing comes any more")) })
	defer stalled.Stop()
	err = b.request(ctx, f, have, hash, size, func() { stalled.Reset(b.stall) })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("blob %s: %w", hash, context.Cause(ctx))
	}
	return err
}

func (b *blobs) request(ctx context.Context, f *os.File, have int64, hash string, size int64, moved func()) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(b.server, "/")+"/v1/blobs/"+hash, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errBlob, err)
	}
	q.Header.Set("Accept-Encoding", "identity") // ranges are those of the blob itself
	if have > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	r, err := b.client.Do(q)
	if err != nil {
		b.client.CloseIdleConnections()
		return err
	}
	defer r.Body.Close()
	switch r.StatusCode {
	case http.StatusPartialContent:
		if !strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)) {
			return errors.Join(fmt.Errorf("blob %s: another range came", hash), f.Truncate(0))
		}
	case http.StatusOK: // from the start
		if err := f.Truncate(0); err != nil {
			return storeError(err)
		}
		have = 0
	case http.StatusRequestedRangeNotSatisfiable:
		// There may be nothing more to come; otherwise it begins anew.
		if strings.HasSuffix(r.Header.Get("Content-Range"), fmt.Sprintf("/%d", have)) {
			return nil
		}
		return errors.Join(fmt.Errorf("blob %s: what was there does not fit", hash), f.Truncate(0))
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w %s: the server does not have it", errBlob, hash)
	default:
		return fmt.Errorf("blob %s: the server says %s", hash, r.Status)
	}
	if r.ContentLength > size-have {
		return fmt.Errorf("%w %s: %d bytes come where at most %d are expected", errBlob, hash, have+r.ContentLength, size)
	}
	if _, err := f.Seek(have, io.SeekStart); err != nil {
		return storeError(err)
	}
	n, err := io.Copy(diskWriter{f}, io.LimitReader(movingReader{r.Body, moved}, size-have+1))
	switch {
	case have+n > size:
		return errors.Join(fmt.Errorf("%w %s: more than the expected %d bytes come", errBlob, hash, size), f.Truncate(0))
	case err == nil && r.ContentLength >= 0 && n < r.ContentLength:
		return io.ErrUnexpectedEOF
	}
	return err
}

// diskWriter tells errors of the disk from those of the network.
type diskWriter struct{ f *os.File }

func (w diskWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		err = storeError(err)
	}
	return n, err
}

// movingReader tells whenever something came.
type movingReader struct {
	r     io.Reader
	moved func()
}

func (m movingReader) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if n > 0 {
		m.moved()
	}
	return n, err
}

// tidy leaves the blobs that were used last, and room for one more.
func (b *blobs) tidy(but string) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), but) {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(x, y fs.FileInfo) int {
		return cmp.Or(y.ModTime().Compare(x.ModTime()), cmp.Compare(x.Name(), y.Name()))
	})
	for _, f := range files[min(len(files), blobsKept-1):] {
		os.Remove(filepath.Join(b.dir, f.Name()))
	}
}
