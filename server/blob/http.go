package blob

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"time"
)

// Handler serves GET and HEAD requests for /v1/blobs/{sha256}. It supports byte ranges, so that
// an interrupted download can resume.
func Handler(s Store, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/blobs/{sha256...}", func(w http.ResponseWriter, r *http.Request) {
		hash := r.PathValue("sha256")
		if !IsHash(hash) {
			http.Error(w, "not a SHA-256 in lower-case hex", http.StatusBadRequest)
			return
		}
		data, err := s.Get(r.Context(), hash)
		switch {
		case err == nil:
		case errors.Is(err, ErrNotFound):
			http.Error(w, "no such blob", http.StatusNotFound)
			return
		case r.Context().Err() != nil:
			return // the client has closed the connection
		default:
			log.Error("cannot serve a blob", "hash", hash, "err", err)
			http.Error(w, "the blob is not available now", http.StatusServiceUnavailable)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	return mux
}
