// Package serve turns a trained plan into forecasts: it reads and writes the folder of a
// model, fits personal layers for clients that have none, and replays earlier issues.
//
// A [Model] is a plan with its shared weights. [Tails] are the readings that forecasts at a
// cutoff may use. [Model.Frame] combines them, and gives a forecaster for each client.
package serve

import (
	"context"
	"errors"
	"io"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// The reasons why a client cannot be served.
var (
	// ErrNoHead means that the client has no personal layers.
	ErrNoHead = errors.New("the client has no personal layers")
	// ErrNoScaling means that the scaling is unknown with which the weights were trained.
	ErrNoScaling = errors.New("the scaling of the client's readings is unknown")
	// ErrShort means that a client has too few readings to fit personal layers.
	ErrShort = errors.New("too few readings")
)

// Model is a plan with its shared weights. It is safe for concurrent use.
type Model struct {
	// Name is shown in forecasts, such as day@7.
	Name string
	// Plan lists all inputs.
	Plan    *fed.Plan
	Problem *recipe.Problem // without a dataset
	// Step is the interval of the readings, or 0 if it is not known.
	Step time.Duration
}

// NewModel returns the model of a plan, for example that of a release. The plan must list
// its inputs. Shared is the shared vector; its moments are ignored.
func NewModel(name string, p *fed.Plan, shared []float32, k *kernel.Set) (*Model, error) {
	return nil, errNotYet
}

var errNotYet = errors.New("serve: not implemented yet")

// Client is what a client needs besides the shared weights.
type Client struct {
	Weights []float32 // all weights of the model; the caller must not change them
	Scaling recipe.Scaling
}

// Client returns a client with the given personal weights, which may be nil if the model
// has none.
func (m *Model) Client(personal []float32, s recipe.Scaling) (Client, error) {
	return Client{}, errNotYet
}

// Scaling computes the scaling of a meter from its readings before the given time.
func (m *Model) Scaling(d *series.Dataset, meter int, before int64) (recipe.Scaling, error) {
	return recipe.Scaling{}, errNotYet
}

// Tail returns the start of the readings that a forecast at a cutoff uses. Earlier readings
// have no effect, so a forecast does not depend on the length of the history.
func Tail(cutoff int64) int64 { return 0 }

// Tails returns a dataset that has the readings of all meters from [Tail] to the cutoff,
// and the weather up to ahead steps after it. Every meter has all these steps; steps without
// a reading are NaN. Reason says what was done about weather that the dataset lacks after
// the cutoff.
func Tails(d *series.Dataset, cutoff int64, ahead int) (tails *series.Dataset, reason issue.Reason, err error) {
	return nil, "", errNotYet
}

// Frame makes the forecasts of a model for the meters of a dataset. It is safe for
// concurrent use.
type Frame struct{}

// Frame returns a frame for a dataset that [Tails] returned. Weather is the reason that it
// returned; rows of the model show it.
func (m *Model) Frame(tails *series.Dataset, weather issue.Reason) (*Frame, error) {
	return nil, errNotYet
}

// Forecaster returns the forecaster of meter i of the dataset.
func (f *Frame) Forecaster(i int, c Client) issue.Forecaster { return nil }

// Fitted says how good fitted personal layers are: the mean loss on held-back readings with
// the personal layers before and after fitting.
type Fitted struct{ Before, After float64 }

// Better reports whether fitting lowered the loss on the held-back readings.
func (f Fitted) Better() bool { return f.After < f.Before }

// Fit fits personal layers for a meter on its own readings before a cutoff. The shared layers
// stay as they are. The last 14 days are held back to compare. From has the personal
// weights to begin with; nil means initial ones.
func (m *Model) Fit(ctx context.Context, d *series.Dataset, meter int, cutoff int64, from []float32, steps int) (Client, Fitted, error) {
	return Client{}, Fitted{}, errNotYet
}

// Replay makes earlier recorded issues of a client, so that its state is the one that it
// would have if it had made them then.
type Replay struct{}

// NewReplay returns a replay for the meters of a dataset. Models may be nil; then only
// fallbacks are replayed.
func NewReplay(d *series.Dataset, own, generic *Model) *Replay { return &Replay{} }

// Advance makes the recorded issues of meter i from the newest step that the state has seen
// to the cutoff, without an issue at the cutoff itself. A new state begins 63 days before
// the cutoff.
func (r *Replay) Advance(s *issue.State, i int, own, generic *Client, cutoff int64) error {
	return errNotYet
}

// Folder is the folder of a model, such as that of a run. Files of clients are read when
// they are needed.
//
//	plan.yaml               the plan
//	shared.safetensors      the shared weights
//	scaling.safetensors     the scaling of all clients
//	personal/*.safetensors  each client's personal weights
//	tuned/*.safetensors     all weights of each client that was fine-tuned
//	states.bin              what clients learned from the errors of their forecasts
//
// The last four may be missing. A Folder is safe for concurrent use.
type Folder struct {
	Model *Model
}

// Open opens a folder. If the folder does not say which inputs the model has, they are
// those that the dataset has; it may be nil otherwise.
func Open(dir string, d *series.Dataset, k *kernel.Set) (*Folder, error) { return nil, errNotYet }

// Clients returns the names of the clients whose scaling the folder has.
func (f *Folder) Clients() []string { return nil }

// Client returns what the folder has of a client. The error is ErrNoHead or ErrNoScaling if
// the folder lacks it. With ErrNoScaling, the client's weights are valid.
func (f *Folder) Client(id string) (Client, error) { return Client{}, errNotYet }

// State returns the encoded state of a client, or nil if the folder has none.
func (f *Folder) State(id string) ([]byte, error) { return nil, errNotYet }

// Close closes the folder.
func (f *Folder) Close() error { return nil }

// WriteScaling writes scaling.safetensors: the scaling of all clients, the inputs of the
// model, and the interval of the readings. At returns the scaling of client i.
func WriteScaling(w io.Writer, q *recipe.Problem, step time.Duration, clients []string, at func(i int) (recipe.Scaling, error)) error {
	return errNotYet
}

// WriteStates writes states.bin. At returns the encoded state of client i, or nil if it has
// none.
func WriteStates(w io.Writer, clients []string, at func(i int) ([]byte, error)) error {
	return errNotYet
}

// EncodeScaling encodes the scaling of one client, for example to keep it with its personal
// weights.
func EncodeScaling(s recipe.Scaling) []byte { return nil }

// DecodeScaling decodes what EncodeScaling returned.
func DecodeScaling(b []byte) (recipe.Scaling, error) { return recipe.Scaling{}, errNotYet }
