package terms

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/internal/stateformat"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// OwnData is the server's dataset. A nil *OwnData means that the server has none. The readings,
// and the personal layers that the server trains on them, stay in the coordinator and its
// ledger.
type OwnData struct {
	dataset     *series.Dataset
	kernel      *kernel.Set
	fingerprint string
}

// NewOwnData returns the server's data. It reads the whole dataset once, for the fingerprint.
func NewOwnData(d *series.Dataset, k *kernel.Set) *OwnData {
	return &OwnData{dataset: d, kernel: k, fingerprint: fingerprint(d)}
}

// Fingerprint identifies the content of the data. It is empty if there is no data. It reveals
// no name and no path, because operators may see it.
func (d *OwnData) Fingerprint() string {
	if d == nil {
		return ""
	}
	return d.fingerprint
}

// fingerprint hashes everything in a dataset from which examples are made.
// [series.Dataset.Fingerprint] samples the readings instead, so it would miss most corrections.
// A run that continued with different readings would not be reproducible.
func fingerprint(d *series.Dataset) string {
	h := sha256.New()
	text := func(all ...string) {
		for _, s := range all {
			fmt.Fprintf(h, "%d %s ", len(s), s)
		}
	}
	text(d.Interval.String(), d.Clock.String(), d.Country)
	text(d.StaticNames...)
	text(d.Weather.Names...)
	number(h, d.Weather.Start)
	for _, c := range d.Weather.Columns {
		floats(h, c)
	}
	// The order of meters in a file has no effect on the examples.
	order := make([]int, d.Len())
	ids := make([]string, d.Len())
	for i := range order {
		order[i], ids[i] = i, d.Meter(i).ID
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(ids[a], ids[b]) })
	for _, i := range order {
		m := d.Meter(i)
		text(m.ID)
		number(h, m.Start)
		floats(h, m.Load)
		floats(h, m.Static)
	}
	return fmt.Sprintf("%d meters every %s, %x", d.Len(), d.Interval, h.Sum(nil)[:8])
}

func number(h hash.Hash, n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	_, _ = h.Write(b[:]) // a hash does not fail
}

func floats(h hash.Hash, all []float32) {
	number(h, int64(len(all)))
	var b [1 << 12]byte
	for part := range slices.Chunk(all, len(b)/4) {
		for i, v := range part {
			bits := math.Float32bits(v)
			if series.Missing(v) {
				bits = math.Float32bits(float32(math.NaN())) // all NaNs count as the same value
			}
			binary.LittleEndian.PutUint32(b[4*i:], bits)
		}
		_, _ = h.Write(b[:4*len(part)]) // a hash does not fail
	}
}

const (
	// leastBatch is the minimum number of examples in a batch. Two versions of the shared
	// weights, and the updates between them, reveal the gradient on the server's batch, and the
	// gradient on a few examples reveals their readings.
	leastBatch = 16
	// mostBytes limits the memory for gradients on a batch, because plans choose the batch size.
	mostBytes = 2 << 30
)

// checkOwnData returns an error if a run of the plan must not use data on a server, whatever
// the data.
func checkOwnData(s *setup.Setup) error {
	p := s.Plan
	const why = "in a fleet it must be at least %d, because the gradient on few examples reveals them"
	if s.Parts.Needs.ServerData && p.Server.Batch < leastBatch {
		return fmt.Errorf("server.batch is %d; "+why, p.Server.Batch, leastBatch)
	}
	if recipe.StartsOnServerData(p) && p.Client.Batch < leastBatch {
		return fmt.Errorf("client.batch is %d and start is %s; "+why, p.Client.Batch, p.Start, leastBatch)
	}
	batch := max(p.Server.Batch, p.Client.Batch)
	const most = 1 << 20
	if batch > most || s.Problem.Model.Net().WorkspaceBytes(batch) > mostBytes {
		return fmt.Errorf("server.batch is %d and client.batch is %d; gradients on that many examples need more than %d MB in the coordinator", p.Server.Batch, p.Client.Batch, mostBytes>>20)
	}
	return nil
}

// Open returns the data for a plan's aggregator, in its state at version zero. interval is the
// time between readings of the fleet. The errors are shown to operators.
func (d *OwnData) Open(s *setup.Setup, interval time.Duration) (*client.ServerData, error) {
	examples, err := d.examples(s, interval, s.Plan.Server.Batch)
	if err != nil {
		return nil, err
	}
	return s.NewServerData(d.kernel, examples)
}

// TrainStart returns the shared weights of version 0 of a plan that starts on the server's
// data. Its errors are shown to operators.
func (d *OwnData) TrainStart(ctx context.Context, s *setup.Setup, interval time.Duration) ([]float32, error) {
	examples, err := d.examples(s, interval, s.Plan.Client.Batch)
	if err != nil {
		return nil, err
	}
	return s.TrainStart(ctx, d.kernel, examples)
}

// examples returns the examples for a plan. It returns an error if they are fewer than a batch.
func (d *OwnData) examples(s *setup.Setup, interval time.Duration, batch int) ([]series.Examples, error) {
	if d == nil {
		return nil, MissingOwnData(s.Plan)
	}
	if err := checkOwnData(s); err != nil {
		return nil, err
	}
	if interval != 0 && d.dataset.Interval != interval {
		return nil, fmt.Errorf("the server's readings are %s apart and those of the clients %s; a model needs a single interval", d.dataset.Interval, interval)
	}
	examples, err := s.ServerExamples(d.dataset, nil)
	if err != nil {
		return nil, fmt.Errorf("the server's data does not fit the plan: %w", err)
	}
	n := 0
	for _, x := range examples {
		n += x.Len(series.Train) * x.PerOrigin()
	}
	if n < batch {
		return nil, fmt.Errorf("the server's data has %d complete training examples, fewer than a batch of %d", n, batch)
	}
	return examples, nil
}

// MissingOwnData returns the reason why a run of a plan is refused or waits if the server has
// no data.
func MissingOwnData(p *fed.Plan) error {
	what := "algorithm " + p.Algorithm
	if recipe.StartsOnServerData(p) {
		what = "start " + p.Start
	}
	return fmt.Errorf("%s needs readings on the server, which has none; start every coordinator with rounds.data in server.yaml, or use loadstar simulate", what)
}

// Changed returns the reason why a run waits if the server's data has changed since the run
// began.
func (d *OwnData) Changed(began string) error {
	return fmt.Errorf("the server's data has changed since the run began: %s then, %s now; start the coordinator with the earlier data, or stop the run", began, d.Fingerprint())
}

var format = stateformat.Format{Name: "state of the server's data", Magic: "LODSVDAT", Version: 1}

// EncodeKept encodes the state of the server's personal layers.
func EncodeKept(kept []float32) []byte {
	var w stateformat.Writer
	w.Float32s(kept)
	return format.Wrap(w.State())
}

// DecodeKept is the inverse of EncodeKept.
func DecodeKept(b []byte) (kept []float32, err error) {
	if _, b, err = format.Unwrap(b); err != nil {
		return nil, err
	}
	return kept, format.Read(b, func(r *stateformat.Reader) { kept = r.Float32s() })
}
