package serve

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
	"loadstar/nn/safetensors"
	"loadstar/series"
	"loadstar/series/feature"
)

// The names of the files in a folder.
const (
	planName    = "plan.yaml"
	sharedName  = "shared.safetensors"
	ScalingName = "scaling.safetensors"
	StatesName  = "states.bin"
	personalDir = "personal"
	TunedDir    = "tuned"
)

// maxPlan is the maximum size of a plan in bytes.
const maxPlan = 1 << 20

// Folder is the folder of a model, such as that of a run. The clients' files are read when they
// are needed.
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

	dir     string
	files   []*os.File
	scaling *safetensors.File // nil if there is none
	ranges  []string          // names of the columns of a scaling of windows
	clients []string
	rows    map[string]int
	states  *os.File // nil if there is none
	places  map[string]place
	tuned   bool // some clients were fine-tuned

	template []float32 // the shared weights, and 0 for the personal ones
	layout   atomic.Pointer[layout]
	spare    sync.Pool // contains *[]float32 with all weights of one client
}

// WeightsFile returns the name of the file for a client's weights in the folder personal or
// tuned. The client's name may contain any characters.
func WeightsFile(client string) string { return url.PathEscape(client) + ".safetensors" }

// Open opens a folder. If the folder does not list the model's inputs, they are taken from the
// dataset; otherwise the dataset may be nil. The model has the plan's name.
func Open(dir string, d *series.Dataset, k *kernel.Set) (*Folder, error) {
	f := &Folder{dir: dir, rows: map[string]int{}}
	if err := f.open(d, k); err != nil {
		_ = f.Close() // the error of open is more important
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return f, nil
}

// Version returns the version of the shared weights in a folder, or "" if there is none.
func Version(dir string) (string, error) {
	path := filepath.Join(dir, sharedName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // all layers are personal
		return "", nil
	} else if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	file, err := safetensors.Open(f, info.Size())
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return file.Metadata()["version"], nil
}

func (f *Folder) open(d *series.Dataset, k *kernel.Set) error {
	text, err := readFile(filepath.Join(f.dir, planName), maxPlan, nil)
	if err != nil {
		return err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return fmt.Errorf("%s: %w", planName, err)
	}
	var step time.Duration
	if err := f.openScaling(p, &step); err != nil {
		return fmt.Errorf("%s: %w", ScalingName, err)
	}
	if p, err = resolve(p, d, &step); err != nil {
		return err
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return err
	}
	shared := make([]float32, q.Partition.SharedLen())
	if len(shared) > 0 {
		w, err := f.weights(q, sharedName, q.Partition.Shared())
		if err != nil {
			return err
		}
		q.Partition.Cut(w, shared, make([]float32, q.Partition.PersonalLen()))
	}
	name := cmp.Or(p.Name, filepath.Base(f.dir))
	if f.Model, err = NewModel(name, p, shared, k); err != nil {
		return err
	}
	f.Model.Step = step
	f.template = make([]float32, q.Model.Net().Weights())
	q.Partition.Join(f.template, shared, make([]float32, q.Partition.PersonalLen()))
	if _, err := os.Stat(filepath.Join(f.dir, TunedDir)); err == nil {
		f.tuned = true
	}
	if f.scaling != nil {
		if err := f.checkShapes(); err != nil {
			return fmt.Errorf("%s: %w", ScalingName, err)
		}
		if p.Model.Scaling == "fleet" && len(f.clients) > 0 {
			if s, err := f.row(0); err == nil {
				f.Model.fleet = &s
			}
		}
	}
	return f.openStates()
}

// resolve completes a plan that does not list its inputs or its interval with those of a
// dataset, and resolves it.
func resolve(p *fed.Plan, d *series.Dataset, step *time.Duration) (*fed.Plan, error) {
	*step = cmp.Or(*step, time.Duration(p.Model.Interval))
	if d != nil && (*step == 0 || len(p.Model.Inputs) == 0) {
		q, err := recipe.Frame(p, d)
		if err != nil {
			return nil, err
		}
		*step, p.Model.Inputs = d.Interval, q.Names()
	}
	if len(p.Model.Inputs) == 0 {
		return nil, fmt.Errorf("the folder has no %s, and its plan does not list the inputs of the model; give the data of the run", ScalingName)
	}
	if *step == 0 {
		return p, nil
	}
	return recipe.Resolve(p, *step)
}

// openScaling opens the scaling, if there is one, and completes the plan with the inputs in the
// scaling.
func (f *Folder) openScaling(p *fed.Plan, step *time.Duration) error {
	file, size, err := f.file(ScalingName)
	if file == nil || err != nil {
		return err
	}
	if f.scaling, err = safetensors.Open(file, size); err != nil {
		return err
	}
	meta := f.scaling.Metadata()
	var inputs []string
	for key, to := range map[string]*[]string{metaClients: &f.clients, metaInputs: &inputs, metaRanges: &f.ranges} {
		if text, ok := meta[key]; ok || key != metaRanges {
			if err := json.Unmarshal([]byte(text), to); err != nil {
				return fmt.Errorf("metadata %s is not a JSON list of names: %w", key, err)
			}
		}
	}
	if *step, err = time.ParseDuration(meta[metaStep]); err != nil || *step <= 0 {
		return fmt.Errorf("metadata %s is %q; want a duration such as 1h", metaStep, meta[metaStep])
	}
	for i, id := range f.clients {
		if _, twice := f.rows[id]; twice {
			return fmt.Errorf("client %s is listed twice", id)
		}
		f.rows[id] = i
	}
	if len(p.Model.Inputs) > 0 && !sameNames(p.Model.Inputs, inputs) {
		return fmt.Errorf("it is for the inputs %v, but the plan has %v", inputs, p.Model.Inputs)
	}
	p.Model.Inputs = inputs
	return nil
}

func sameNames(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// checkShapes checks the arrays of the scaling.
func (f *Folder) checkShapes() error {
	n := len(f.clients)
	want := map[string][]int{"low": {n, len(f.ranges)}, "high": {n, len(f.ranges)}}
	if recipe.Rows(f.Model.Plan) {
		want = map[string][]int{}
		for _, t := range newFeatureColumns(0).tensors(n) {
			want[t.Name] = t.Shape
		}
	} else if !slices.Equal(f.ranges, rangeNames(f.Model.Problem)) {
		return fmt.Errorf("it has ranges of %v, but the model needs %v", f.ranges, rangeNames(f.Model.Problem))
	}
	for name, shape := range want {
		if got, ok := f.scaling.Shape(name); !ok || !slices.Equal(got, shape) {
			return fmt.Errorf("array %s has the shape %v; want %v, because %d clients are listed", name, got, shape, n)
		}
	}
	return nil
}

func (f *Folder) openStates() error {
	file, size, err := f.file(StatesName)
	if file == nil || err != nil {
		return err
	}
	f.states = file
	f.places, err = readIndex(file, size)
	return err
}

// file opens a file in the folder, which [Folder.Close] closes. The result is nil if the file
// does not exist.
func (f *Folder) file(name string) (*os.File, int64, error) {
	file, err := openFile(filepath.Join(f.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	f.files = append(f.files, file)
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", name)
	}
	return file, info.Size(), nil
}

// Clients returns the names of the clients whose scaling is in the folder.
func (f *Folder) Clients() []string { return slices.Clone(f.clients) }

// Client reads a client from the folder. The error is ErrNoHead if the folder lacks the
// client's personal layers, or ErrNoScaling if it lacks the scaling. With ErrNoScaling, the
// client's weights are valid.
func (f *Folder) Client(id string) (c Client, err error) {
	if c.Weights, c.spare, err = f.clientWeights(id); err != nil {
		return c, fmt.Errorf("client %s: %w", id, err)
	}
	row, ok := f.rows[id]
	switch {
	case ok:
		if c.Scaling, err = f.row(row); err != nil {
			err = fmt.Errorf("client %s: %s: %w", id, ScalingName, err)
		}
	case f.Model.fleet != nil:
		c.Scaling = *f.Model.fleet
	default:
		err = fmt.Errorf("client %s: %w", id, ErrNoScaling)
	}
	return c, err
}

// Release lets the folder reuse the memory of a client that it returned. Afterwards, the caller
// must not use the client or its forecaster. Releasing clients is optional.
func (f *Folder) Release(c Client) {
	if c.spare != nil {
		f.spare.Put(c.spare)
	}
}

// row returns the scaling of the client with the given number.
func (f *Folder) row(i int) (s recipe.Scaling, err error) {
	if !recipe.Rows(f.Model.Plan) {
		n := len(f.ranges)
		low, high := make([]float32, n), make([]float32, n)
		if err := errors.Join(f.scaling.Float32s(low, "low", i*n), f.scaling.Float32s(high, "high", i*n)); err != nil {
			return s, err
		}
		s.Ranges = series.Ranges{}
		for k, name := range f.ranges {
			if !series.Missing(low[k]) {
				s.Ranges[name] = series.Range{Low: low[k], High: high[k]}
			}
		}
		return s, f.Model.checkScaling(s)
	}
	var x [6]float64
	var count [1]int32
	c := &feature.Scaling{}
	if err := errors.Join(
		f.scaling.Float64s(x[:1], "mean", i), f.scaling.Float64s(x[1:2], "deviation", i),
		f.scaling.Float64s(x[2:4], "temperature", 2*i), f.scaling.Float64s(x[4:6], "wind", 2*i),
		f.scaling.Float32s(c.Profile[:], "profile", i*len(c.Profile)), f.scaling.Int32s(count[:], "rank_count", i),
	); err != nil {
		return s, err
	}
	setMoments(c, x[:])
	if count[0] < 0 || count[0] > knots {
		return s, fmt.Errorf("a distribution of %d numbers; want at most %d", count[0], knots)
	}
	c.Ranks = feature.Ranks{Value: make([]float32, count[0]), Below: make([]float32, count[0]), Upto: make([]float32, count[0])}
	if err := errors.Join(f.scaling.Float32s(c.Ranks.Value, "rank_value", i*knots),
		f.scaling.Float32s(c.Ranks.Below, "rank_below", i*knots), f.scaling.Float32s(c.Ranks.Upto, "rank_upto", i*knots)); err != nil {
		return s, err
	}
	s.Features = c
	return s, f.Model.checkScaling(s)
}

// State returns the encoded state of a client, or nil if the folder has none. The result may
// use the memory of buffer.
func (f *Folder) State(id string, buffer []byte) ([]byte, error) {
	at, ok := f.places[id]
	if !ok || at.n == 0 {
		return nil, nil
	}
	b := slices.Grow(buffer[:0], int(at.n))[:at.n]
	if _, err := f.states.ReadAt(b, at.from); err != nil {
		return nil, fmt.Errorf("client %s: %s: %w", id, StatesName, err)
	}
	return b, nil
}

// Close closes the folder.
func (f *Folder) Close() error {
	var err error
	for _, file := range f.files {
		err = errors.Join(err, file.Close())
	}
	f.files = nil
	return err
}
