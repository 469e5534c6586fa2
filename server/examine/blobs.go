package examine

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/server/blob"
)

// watched is a store that counts its failures. It logs damage, because coordinators and
// gateways report only that a blob cannot be read.
type watched struct {
	blob.Store
	log             *slog.Logger
	damaged, failed prometheus.Counter
}

// Blobs returns a store that counts the failures of another store.
func Blobs(s blob.Store, log *slog.Logger, r prometheus.Registerer) blob.Store {
	w := &watched{
		Store: s, log: log,
		damaged: prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_blobs_damaged_total", Help: "Reads of weights and plans whose content did not match their hash."}),
		failed:  prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_blobs_failed_total", Help: "Reads and writes of weights and plans that failed."}),
	}
	r.MustRegister(w.damaged, w.failed)
	return w
}

func (w *watched) note(ctx context.Context, err error) {
	switch {
	case err == nil || errors.Is(err, blob.ErrNotFound) || ctx.Err() != nil:
	case errors.Is(err, blob.ErrDamaged):
		w.damaged.Inc()
		w.log.Error("damaged data was found and not used: check the disk or the S3 store, and unless a retry succeeds restore the file from a backup", "error", err)
	default:
		w.failed.Inc()
	}
}

func (w *watched) Put(ctx context.Context, data []byte) (string, error) {
	hash, err := w.Store.Put(ctx, data)
	w.note(ctx, err)
	return hash, err
}

func (w *watched) Get(ctx context.Context, hash string) ([]byte, error) {
	data, err := w.Store.Get(ctx, hash)
	w.note(ctx, err)
	return data, err
}
