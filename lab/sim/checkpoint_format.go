package sim

import (
	"maps"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/fed/limit"
	"loadstar/fed/round"
	"loadstar/internal/stateformat"
	"loadstar/lab/run"
)

var checkpointFormat = stateformat.Format{Name: "checkpoint", Magic: "LODCHECK", Version: 1}

// checkpoint is the state of a run between two rounds. After resuming, clients that were
// in flight train again from the weights that they received.
type checkpoint struct {
	Dataset, Kernel string
	Machine, Server []byte
	Own             []float32 // the server's own personal layers
	Kept            []byte    // snapshot of the clients' weights, from a [Kept]
	Now             time.Duration
	Agenda          []event
	Tasks           map[round.Assignment]int // index into Received
	Received        []fed.Task
	Offsets         run.Offsets
	Steps           int64
	RelativeMAE     float64 // median
}

// encode returns the encoded checkpoint. It copies all fields, because the simulation
// changes them while the checkpoint is being written.
func (c *checkpoint) encode() []byte {
	var w stateformat.Writer
	w.String(c.Dataset)
	w.String(c.Kernel)
	w.Bytes(c.Machine)
	w.Bytes(c.Server)
	w.Float32s(c.Own)
	w.Bytes(c.Kept)
	w.Int(int64(c.Now))
	w.Int(int64(len(c.Agenda)))
	for _, e := range c.Agenda {
		w.Int(int64(e.At))
		writeAssignment(&w, e.For)
		w.Bool(e.Lost)
	}
	w.Int(int64(len(c.Received)))
	for _, t := range c.Received {
		w.Int(int64(t.Round))
		w.Int(int64(t.Version))
		w.Float32s(t.Shared)
		w.Float32s(t.Control)
		limit.WriteLimits(&w, t.Limits)
	}
	w.Int(int64(len(c.Tasks)))
	for _, a := range sortedKeys(c.Tasks) {
		writeAssignment(&w, a)
		w.Int(int64(c.Tasks[a]))
	}
	w.Int(c.Offsets.Rounds)
	w.Int(c.Offsets.Evaluations)
	w.Int(c.Steps)
	w.Float64(c.RelativeMAE)
	return checkpointFormat.Wrap(w.State())
}

func (c *checkpoint) decode(b []byte) error {
	_, b, err := checkpointFormat.Unwrap(b)
	if err != nil {
		return err
	}
	if err := checkpointFormat.Read(b, c.read); err != nil {
		return err
	}
	for a, i := range c.Tasks {
		if i < 0 || i >= len(c.Received) {
			return checkpointFormat.Damaged("client %d has task %d of %d", a.Client, i, len(c.Received))
		}
	}
	return nil
}

// assignmentSize is the encoded size of an assignment, in bytes.
const assignmentSize = 3 * 8

func (c *checkpoint) read(r *stateformat.Reader) {
	c.Dataset = r.String()
	c.Kernel = r.String()
	c.Machine = r.Bytes()
	c.Server = r.Bytes()
	c.Own = r.Float32s()
	c.Kept = r.Bytes()
	c.Now = time.Duration(r.Int())
	for range r.Count(8 + assignmentSize + 1) {
		c.Agenda = append(c.Agenda, event{At: time.Duration(r.Int()), For: readAssignment(r), Lost: r.Bool()})
	}
	for range r.Count(4 * 8) {
		c.Received = append(c.Received, fed.Task{
			Round: int(r.Int()), Version: int(r.Int()), Shared: r.Float32s(), Control: r.Float32s(), Limits: limit.ReadLimits(r),
		})
	}
	c.Tasks = map[round.Assignment]int{}
	for range r.Count(assignmentSize + 8) {
		a := readAssignment(r)
		c.Tasks[a] = int(r.Int())
	}
	c.Offsets.Rounds = r.Int()
	c.Offsets.Evaluations = r.Int()
	c.Steps = r.Int()
	c.RelativeMAE = r.Float64()
}

func writeAssignment(w *stateformat.Writer, a round.Assignment) {
	w.Int(int64(a.Client))
	w.Int(int64(a.Round))
	w.Int(int64(a.Version))
}

func readAssignment(r *stateformat.Reader) round.Assignment {
	return round.Assignment{Client: int(r.Int()), Round: int(r.Int()), Version: int(r.Int())}
}

// sortedKeys returns the keys of m, sorted by round and client, so that the encoding does
// not depend on map order.
func sortedKeys[V any](m map[round.Assignment]V) []round.Assignment {
	return slices.SortedFunc(maps.Keys(m), func(a, b round.Assignment) int {
		if a.Round != b.Round {
			return a.Round - b.Round
		}
		return a.Client - b.Client
	})
}
