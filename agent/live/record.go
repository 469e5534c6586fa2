package live

import (
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
)

// The kinds of values in the file.
var (
	modelFormat  = stateformat.Format{Name: "a model", Magic: "LSLVMODL", Version: 1}
	headFormat   = stateformat.Format{Name: "a client's weights", Magic: "LSLVHEAD", Version: 1}
	clientFormat = stateformat.Format{Name: "a client's record", Magic: "LSLVCLNT", Version: 1}
	stateFormat  = stateformat.Format{Name: "a client's state", Magic: "LSLVSTAT", Version: 1}
	newestFormat = stateformat.Format{Name: "a forecast", Magic: "LSLVNEWS", Version: 1}
	issuedFormat = stateformat.Format{Name: "an issued forecast", Magic: "LSLVISSU", Version: 1}
	scoreFormat  = stateformat.Format{Name: "a client's scores", Magic: "LSLVSCOR", Version: 1}
)

// modelRecord is a model that the agent has received. Folder means that it comes from the
// configuration, not from a server.
type modelRecord struct {
	ID       string
	Name     string
	Run      string
	Version  int
	Role     release.Role
	Received int64
	Folder   bool
	Plan     []byte
	Shared   []float32
}

func (r *modelRecord) ref() ModelRef {
	return ModelRef{Release: r.Name, Run: r.Run, Version: r.Version}
}

func (r *modelRecord) encode() []byte {
	var w stateformat.Writer
	w.String(r.ID)
	w.String(r.Name)
	w.String(r.Run)
	w.Int(int64(r.Version))
	w.String(string(r.Role))
	w.Int(r.Received)
	w.Bool(r.Folder)
	w.Bytes(r.Plan)
	w.Float32s(r.Shared)
	return w.State()
}

func (r *modelRecord) decode(b []byte) error {
	return modelFormat.Read(b, func(x *stateformat.Reader) {
		r.ID, r.Name, r.Run = x.String(), x.String(), x.String()
		r.Version = int(x.Int())
		r.Role = release.Role(x.String())
		r.Received = x.Int()
		r.Folder = x.Bool()
		r.Plan = x.Bytes()
		r.Shared = x.Float32s()
	})
}

// Origin is the source of a client's weights.
type origin string

const (
	trained origin = "trained" // by rounds of a run
	fitted  origin = "fitted"  // on the client's readings, with the shared layers fixed
	refit   origin = "refit"   // fitted again after an alarm
)

// head contains the weights and the scaling of a client for a model.
type head struct {
	Model   string
	Client  string
	Made    int64
	Origin  origin
	Weights []float32 // all weights
	Scaling []byte
	// State is what the client had learned from its forecasts' errors by the end of
	// training, or nil.
	State []byte
}

func (h *head) encode() []byte {
	var w stateformat.Writer
	w.String(h.Model)
	w.String(h.Client)
	w.Int(h.Made)
	w.String(string(h.Origin))
	w.Float32s(h.Weights)
	w.Bytes(h.Scaling)
	w.Bytes(h.State)
	return w.State()
}

func (h *head) decode(b []byte) error {
	return headFormat.Read(b, func(x *stateformat.Reader) {
		h.Model, h.Client = x.String(), x.String()
		h.Made = x.Int()
		h.Origin = origin(x.String())
		h.Weights = x.Float32s()
		h.Scaling = x.Bytes()
		h.State = x.Bytes()
	})
}

// clientRecord records which model a client uses. Contenders are numbers of heads. 0 means that
// the client uses fallbacks.
type clientRecord struct {
	Champion uint64 `json:"champion"`
	// Before lists earlier champions, newest first.
	Before []uint64 `json:"before,omitempty"`
	// Shadow is the previous champion while it runs silently. It is listed in Before, or is 0
	// for the fallbacks. TrialFrom is the time at which the current champion took over, or 0
	// after its trial.
	Shadow    uint64 `json:"shadow"`
	TrialFrom int64  `json:"trial_from,omitempty"`
	Pinned    bool   `json:"pinned,omitempty"`
	// Refused lists the models that the client does not use.
	Refused []string `json:"refused,omitempty"`
	// Judged contains the time at which each model was last compared without a result, or
	// refused because of its errors.
	Judged map[string]int64 `json:"judged,omitempty"`
	// Refit is the time at which the head was last fitted because of an alarm.
	Refit      int64 `json:"refit,omitempty"`
	WantsRound bool  `json:"wants_round,omitempty"`
	Reported   int64 `json:"reported,omitempty"` // newest day whose report the server has received
	// Told contains the codes of the findings that the server knows.
	Told     []string `json:"told,omitempty"`
	Sequence uint64   `json:"sequence,omitempty"`
}

// maxRefused limits the list of refused models. maxBefore limits the earlier champions, so
// that three are kept including the current one.
const (
	maxRefused = 64
	maxBefore  = 2
)

func (r *clientRecord) refuse(model string) {
	if !slices.Contains(r.Refused, model) {
		r.Refused = append(r.Refused, model)
	}
	if n := len(r.Refused) - maxRefused; n > 0 {
		r.Refused = slices.Delete(r.Refused, 0, n)
	}
	delete(r.Judged, model)
}

// retries reports whether a refused model may be tried again. A model must not be tried again if
// somebody rolled it back, or if its forecasts left the range of the readings.
func (r *clientRecord) retries(model string) bool {
	_, ok := r.Judged[model]
	return ok
}

// promote makes a contender the champion, and the current champion its shadow.
func (r *clientRecord) promote(id uint64, now int64) {
	if r.Champion != 0 {
		r.Before = append([]uint64{r.Champion}, r.Before...)
		r.Before = r.Before[:min(len(r.Before), maxBefore)]
	}
	r.Shadow, r.TrialFrom = r.Champion, now
	r.Champion = id
}

// back returns to the previous champion.
func (r *clientRecord) back() {
	r.Champion, r.Shadow, r.TrialFrom = 0, 0, 0
	if len(r.Before) > 0 {
		r.Champion, r.Before = r.Before[0], r.Before[1:]
	}
}

// sources numbers the sources of rows for the file. Numbers must not change.
var sources = []issue.Source{issue.None, issue.Model, issue.Generic, issue.Week, issue.Day, issue.Last, issue.Median}

// recorded is an issue to score. Values contains a row of Levels values for each step.
// Means contains each step's mean.
type recorded struct {
	Cutoff  int64
	Head    uint64
	Levels  int
	Values  []float32
	Means   []float32
	Sources []byte
	// Bare is the model's own point forecast, empty if there is none. Shadow contains the
	// values of the silent contender, or is empty.
	Bare   []float32
	Shadow []float32
}

func (r *recorded) encode() []byte {
	var w stateformat.Writer
	w.Int(r.Cutoff)
	w.Int(int64(r.Head))
	w.Int(int64(r.Levels))
	w.Float32s(r.Values)
	w.Float32s(r.Means)
	w.Bytes(r.Sources)
	w.Float32s(r.Bare)
	w.Float32s(r.Shadow)
	return w.State()
}

func (r *recorded) decode(b []byte) error {
	err := issuedFormat.Read(b, func(x *stateformat.Reader) {
		r.Cutoff, r.Head, r.Levels = x.Int(), uint64(x.Int()), int(x.Int())
		r.Values, r.Means, r.Sources = x.Float32s(), x.Float32s(), x.Bytes()
		r.Bare, r.Shadow = x.Float32s(), x.Float32s()
	})
	if err != nil {
		return err
	}
	n := len(r.Sources)
	if r.Levels < 1 || len(r.Values) != n*r.Levels || len(r.Means) != n || len(r.Bare) > n || len(r.Shadow) != 0 && len(r.Shadow) != len(r.Values) {
		return issuedFormat.Damaged("its parts do not fit together")
	}
	return nil
}

// readRecorded returns a recorded issue from its stored form.
func readRecorded(b []byte) (*recorded, error) {
	_, state, err := issuedFormat.Unwrap(b)
	if err != nil {
		return nil, err
	}
	r := &recorded{}
	return r, r.decode(state)
}

// steps returns the number of steps that were forecast.
func (r *recorded) steps() int { return len(r.Sources) }

// record returns the stored form of an issue.
func record(f *issue.Forecast) *recorded {
	r := &recorded{Cutoff: f.Cutoff, Levels: len(f.Levels), Values: values(f)}
	for _, row := range f.Rows {
		r.Means = append(r.Means, float32(row.Mean))
		r.Sources = append(r.Sources, byte(max(slices.Index(sources, row.Source), 0)))
	}
	return r
}

// putIssue stores the newest forecast of a client or group, and the recorded issue if it is not
// nil. It removes issues that are no longer needed.
func putIssue(tx *bolt.Tx, x *Issued, r *recorded, step int64) error {
	if err := put(tx, newestBucket, []byte(x.Client), newestFormat, encodeIssued(x)); err != nil || r == nil {
		return err
	}
	if err := put(tx, issuedBucket, timeKey(x.Client, r.Cutoff), issuedFormat, r.encode()); err != nil {
		return err
	}
	var old [][]byte
	until := r.Cutoff - int64(r.steps())*step - keptIssues
	err := eachTime(tx, issuedBucket, x.Client, 0, until, func(at int64, _ []byte) error {
		old = append(old, timeKey(x.Client, at))
		return nil
	})
	for _, k := range old {
		err = errors.Join(err, tx.Bucket(issuedBucket).Delete(k))
	}
	return err
}

func values(f *issue.Forecast) []float32 {
	out := make([]float32, 0, len(f.Rows)*len(f.Levels))
	for _, row := range f.Rows {
		for i := range f.Levels {
			v := nan
			if i < len(row.Values) {
				v = float32(row.Values[i])
			}
			out = append(out, v)
		}
	}
	return out
}

func encodeIssued(x *Issued) []byte {
	var w stateformat.Writer
	w.String(x.Client)
	w.Int(x.Cutoff)
	w.Float64s(x.Levels)
	w.String(x.Model)
	w.Float64(x.Weight)
	w.Int(x.Issued)
	w.String(x.Release.Release)
	w.String(x.Release.Run)
	w.Int(int64(x.Release.Version))
	w.Int(x.Release.Head)
	w.Bool(x.Release.Stale)
	w.Int(int64(x.Sequence))
	w.Int(int64(len(x.Rows)))
	for _, r := range x.Rows {
		w.Int(r.Time)
		w.Float64s(r.Values)
		w.Float64(r.Mean)
		w.String(string(r.Source))
		w.String(string(r.Quality))
		w.String(string(r.Reason))
	}
	w.Int(int64(len(x.Days)))
	for _, d := range x.Days {
		w.Int(d.Start)
		w.Int(d.End)
		for _, v := range []float64{d.Mean, d.P10, d.P90} {
			w.Float64(v)
		}
	}
	w.Int(x.Peak.Time)
	for _, v := range []float64{x.Peak.P10, x.Peak.P50, x.Peak.P90} {
		w.Float64(v)
	}
	return w.State()
}

func decodeIssued(b []byte) (*Issued, error) {
	x := &Issued{}
	err := newestFormat.Read(b, func(r *stateformat.Reader) {
		x.Client, x.Cutoff, x.Levels = r.String(), r.Int(), r.Float64s()
		x.Model, x.Weight, x.Issued = r.String(), r.Float64(), r.Int()
		x.Release.Release, x.Release.Run = r.String(), r.String()
		x.Release.Version, x.Release.Head, x.Release.Stale = int(r.Int()), r.Int(), r.Bool()
		x.Sequence = uint64(r.Int())
		x.Rows = make([]issue.Row, r.Count(6*8))
		for i := range x.Rows {
			x.Rows[i] = issue.Row{
				Time: r.Int(), Values: r.Float64s(), Mean: r.Float64(), Source: issue.Source(r.String()),
				Quality: issue.Quality(r.String()), Reason: issue.Reason(r.String()),
			}
		}
		x.Days = make([]issue.DayEnergy, r.Count(5*8))
		for i := range x.Days {
			x.Days[i] = issue.DayEnergy{Start: r.Int(), End: r.Int(), Mean: r.Float64(), P10: r.Float64(), P90: r.Float64()}
		}
		x.Peak = issue.Peak{Time: r.Int(), P10: r.Float64(), P50: r.Float64(), P90: r.Float64()}
	})
	if err == nil && x.Client == "" {
		err = fmt.Errorf("a stored forecast has no client")
	}
	return x, err
}
