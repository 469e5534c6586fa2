package protocol

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "loadstar/proto/loadstar/v1"
)

// attempts is the maximum number of attempts for a download that is interrupted.
const attempts = 5

// FetchBlob returns a blob, which may have up to most bytes, after checking its hash. It
// resumes an interrupted download.
func FetchBlob(ctx context.Context, client *http.Client, server, hash string, most int64) ([]byte, error) {
	var data bytes.Buffer
	var err error
	for range attempts {
		if err = fetch(ctx, client, server, hash, &data, most); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", hash, err)
	}
	if sum := sha256.Sum256(data.Bytes()); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("blob %s: the content has a different hash", hash)
	}
	return data.Bytes(), nil
}

func fetch(ctx context.Context, client *http.Client, server, hash string, data *bytes.Buffer, most int64) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(server, "/")+"/v1/blobs/"+hash, nil)
	if err != nil {
		return err
	}
	q.Header.Set("Accept-Encoding", "identity") // byte ranges must refer to the uncompressed blob
	if data.Len() > 0 {
		q.Header.Set("Range", fmt.Sprintf("bytes=%d-", data.Len()))
	}
	r, err := client.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	switch {
	case r.StatusCode == http.StatusOK:
		data.Reset()
	case r.StatusCode == http.StatusPartialContent && strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", data.Len())):
	default:
		said, _ := io.ReadAll(io.LimitReader(r.Body, 256))
		return fmt.Errorf("the server returned %s: %s", r.Status, strings.TrimSpace(string(said)))
	}
	left := most - int64(data.Len())
	if n, err := io.Copy(data, io.LimitReader(r.Body, left+1)); err != nil {
		return err
	} else if n > left {
		return fmt.Errorf("the blob has more than %d bytes", most)
	}
	return nil
}

// SendResult sends the numbers of a result in chunks and returns the server's verdict on the
// complete result. It sets the checksum and the size in q. It does not resend chunks that the
// server already has from an earlier attempt. training lists the turns in progress, for which
// the server assigns no tasks. With offer, it first asks whether the server takes the result now,
// as it always does for a result of several chunks.
func SendResult(ctx context.Context, service v1.AgentServiceClient, training []*v1.Turns, q *v1.Result, numbers []byte, chunk int, offer bool) (*v1.Received, error) {
	q.Checksum, q.Size, q.Offset = Checksum(numbers), int64(len(numbers)), 0
	// A server may lose chunks and request them again. Limit the number of requests.
	for i := range 16 + 2*(len(numbers)/chunk) {
		q.Chunk = numbers[q.Offset:min(q.Offset+int64(chunk), q.Size)]
		if i == 0 && (offer || len(numbers) > chunk) {
			q.Chunk = nil // the response contains the position to continue from, or a verdict that the result is no longer wanted
		}
		s, err := service.Exchange(ctx, &v1.ExchangeRequest{Training: training, Result: q})
		if err != nil || s.GetReceived().GetOutcome() != v1.Outcome_OUTCOME_PART {
			return s.GetReceived(), err
		}
		if q.Offset = s.Received.NextOffset; q.Offset < 0 || q.Offset > q.Size {
			return nil, fmt.Errorf("the server requests byte %d of a result of %d bytes", q.Offset, q.Size)
		}
	}
	return nil, errors.New("the server keeps requesting the same chunks")
}
