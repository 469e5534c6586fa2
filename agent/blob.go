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

// blobsKept is the number of blobs that the disk cache holds. An audit needs at most this
// many plans and versions of the weights.
const blobsKept = 16

// blobs fetches plans, weights and control variates by hash and caches them on disk. An
// interrupted download resumes. It is not safe for concurrent use.
type blobs struct {
	dir    string
	server string
	client *http.Client
	stall  time.Duration
}

// errBlob marks errors that may persist after a retry: wrong hash, wrong size, not found.
var errBlob = errors.New("blob")

// prepare creates the cache folder.
func (b *blobs) prepare() error { return os.MkdirAll(b.dir, 0o700) }

// get returns the blob with the given hash from the cache or the server. The blob must have
// at most size bytes, or exactly size bytes if exact is set.
func (b *blobs) get(ctx context.Context, hash string, size int64, exact bool) ([]byte, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size || hash != strings.ToLower(hash) {
		return nil, fmt.Errorf("%w: %.80q is not a SHA-256", errBlob, hash)
	}
	path := filepath.Join(b.dir, hash)
	if data, err := b.read(path, hash, size, exact); err == nil {
		now := time.Now()
		// Mark the blob as recently used. A failure only means that the blob is evicted
		// earlier.
		_ = os.Chtimes(path, now, now)
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

// maxBlobs limits the bytes of the blobs in a response.
const maxBlobs = 4 << 20

// have returns the hashes of the blobs in the cache. Their content may be damaged; get detects
// such damage.
func (b *blobs) have() (all [][]byte) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if sum, err := hex.DecodeString(e.Name()); err == nil && len(sum) == sha256.Size && len(all) < 2*blobsKept {
			all = append(all, sum)
		}
	}
	return all
}

// put adds blobs to the cache. It may be called while another goroutine calls get.
func (b *blobs) put(all [][]byte) error {
	for _, data := range all {
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:])
		b.tidy(hash)
		path := filepath.Join(b.dir, hash)
		if err := os.WriteFile(path+".put", data, 0o600); err != nil {
			return storeError(err)
		}
		if err := os.Rename(path+".put", path); err != nil {
			return storeError(err)
		}
	}
	return nil
}

// cached is like get, but does not ask the server.
func (b *blobs) cached(hash string, size int64, exact bool) ([]byte, error) {
	return b.read(filepath.Join(b.dir, filepath.Base(hash)), hash, size, exact)
}

// read returns the content of a file after checking its size and hash.
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
		return nil, fmt.Errorf("%w %s has %d bytes, want %d", errBlob, hash, n, size)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("%w %s: the content has a different hash", errBlob, hash)
	}
	return data, nil
}

// fetch downloads the missing bytes of a partial file. The file never grows beyond size
// bytes.
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
	stalled := time.AfterFunc(b.stall, func() { cancel(errors.New("the download makes no progress")) })
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
	q.Header.Set("Accept-Encoding", "identity") // byte ranges must refer to the uncompressed blob
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
			return errors.Join(fmt.Errorf("blob %s: the server sent a different byte range", hash), f.Truncate(0))
		}
	case http.StatusOK: // the whole blob
		if err := f.Truncate(0); err != nil {
			return storeError(err)
		}
		have = 0
	case http.StatusRequestedRangeNotSatisfiable:
		// The server has no bytes after this offset. Either the file is complete, or the
		// download must start again.
		if strings.HasSuffix(r.Header.Get("Content-Range"), fmt.Sprintf("/%d", have)) {
			return nil
		}
		return errors.Join(fmt.Errorf("blob %s: the partial file does not match", hash), f.Truncate(0))
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w %s: the server does not have it", errBlob, hash)
	default:
		return fmt.Errorf("blob %s: the server returned %s", hash, r.Status)
	}
	if r.ContentLength > size-have {
		return fmt.Errorf("%w %s: the server announces %d bytes, but the limit is %d", errBlob, hash, have+r.ContentLength, size)
	}
	if _, err := f.Seek(have, io.SeekStart); err != nil {
		return storeError(err)
	}
	n, err := io.Copy(diskWriter{f}, io.LimitReader(movingReader{r.Body, moved}, size-have+1))
	switch {
	case have+n > size:
		return errors.Join(fmt.Errorf("%w %s: the server sent more than %d bytes", errBlob, hash, size), f.Truncate(0))
	case err == nil && r.ContentLength >= 0 && n < r.ContentLength:
		return io.ErrUnexpectedEOF
	}
	return err
}

// diskWriter marks write errors as errors of the agent's disk, not of the network.
type diskWriter struct{ f *os.File }

func (w diskWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		err = storeError(err)
	}
	return n, err
}

// movingReader calls moved after each read that returns data.
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

// drop deletes a blob from the cache.
func (b *blobs) drop(hash string) { os.Remove(filepath.Join(b.dir, hash)) }

// tidy deletes the least recently used blobs to make room for one more. It keeps the blob
// named but.
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
