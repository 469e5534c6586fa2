package live

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"loadstar/agent/release"
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/boltfile"
	"loadstar/internal/stateformat"
	"loadstar/series"
)

var nan = float32(math.NaN())

// model is a model with its weights.
type model struct {
	modelRecord
	// serve is nil if the model cannot be used here, and err is the reason.
	serve *serve.Model
	err   error
}

// catalog contains the agent's models and its clients' weights. The roster's lock guards it.
type catalog struct {
	*inputs
	db      *boltfile.File
	models  map[string]*model
	heads   map[headKey][]uint64
	dropped map[string]bool // releases that prune removed
	folder  string          // ID of the model in Config.Model
	young   *model          // the model in Config.Generic, or nil if it does not suit the site
}

// newModel makes a stored model usable.
func (cat *catalog) newModel(r modelRecord) *model {
	m := &model{modelRecord: r}
	p, err := recipe.Read(r.Plan)
	if err == nil {
		m.serve, err = serve.NewModel(r.Name, p, r.Shared, cat.c.Kernel)
	}
	if err != nil {
		m.err = fmt.Errorf("model %s cannot be used: %w", r.Name, err)
	}
	m.Plan, m.Shared = nil, nil // the model itself contains them
	return m
}

// reason returns why a model cannot forecast for the site, or an empty string if it can.
func (cat *catalog) reason(m *model) issue.Reason {
	switch {
	case m == nil || m.serve == nil:
		return issue.NoRelease
	case m.serve.Step != 0 && m.serve.Step != cat.c.Site.Interval:
		return issue.StepDiffers
	}
	return ""
}

// runner is a contender in use. It has a model and a client's weights and state. A runner
// without a model uses fallbacks.
type runner struct {
	id     uint64 // ID of the head, 0 without a model
	model  *model
	client serve.Client
	made   int64
	origin origin
	// begin is the encoded state at the end of training, or nil.
	begin []byte
	state *issue.State
}

// runner returns the runner of a head, with an empty state.
func (cat *catalog) runner(id uint64) (*runner, error) {
	r := &runner{id: id}
	var err error
	if r.state, err = cat.newState(); err != nil || id == 0 {
		return r, err
	}
	h := &head{}
	err = cat.db.View(func(tx *bolt.Tx) error {
		b, err := get(tx, headsBucket, numberKey(id), headFormat)
		if err == nil && b == nil {
			err = fmt.Errorf("the weights with number %d are missing", id)
		}
		if err != nil {
			return err
		}
		return h.decode(b)
	})
	if err != nil {
		return nil, err
	}
	return r, cat.fill(r, h)
}

// fill sets the model and the weights of a runner.
func (cat *catalog) fill(r *runner, h *head) error {
	m := cat.models[h.Model]
	if m == nil || m.serve == nil {
		return fmt.Errorf("the model %s of client %s is missing", h.Model, h.Client)
	}
	scaling, err := serve.DecodeScaling(h.Scaling)
	if err != nil {
		return err
	}
	r.model, r.made, r.origin, r.begin = m, h.Made, h.Origin, h.State
	r.client = serve.Client{Weights: h.Weights, Scaling: scaling}
	return nil
}

func newHead(model, client string, made int64, from origin, c serve.Client) *head {
	return &head{Model: model, Client: client, Made: made, Origin: from, Weights: c.Weights, Scaling: serve.EncodeScaling(c.Scaling)}
}

// putHead stores a head and returns its number.
func putHead(tx *bolt.Tx, h *head) (uint64, error) {
	id, err := tx.Bucket(headsBucket).NextSequence()
	if err != nil {
		return 0, err
	}
	return id, put(tx, headsBucket, numberKey(id), headFormat, h.encode())
}

// numberOf returns the number of a head if the file already has it, or 0.
func (cat *catalog) numberOf(h *head) uint64 {
	if h.Origin != trained {
		return 0
	}
	for _, id := range cat.heads[headKey{h.Model, h.Client}] {
		return id
	}
	return 0
}

// addModel stores a model and the heads that clients have for it.
func (cat *catalog) addModel(r modelRecord, heads []*head) error {
	m := cat.newModel(r)
	if m.err != nil {
		return m.err
	}
	numbers := map[string]uint64{}
	err := cat.db.Update(func(tx *bolt.Tx) error {
		for _, h := range heads {
			id, err := putHead(tx, h)
			if err != nil {
				return err
			}
			numbers[h.Client] = id
		}
		return put(tx, modelsBucket, []byte(r.ID), modelFormat, r.encode())
	})
	if err != nil {
		return err
	}
	cat.models[r.ID] = m
	for client, id := range numbers {
		cat.heads[headKey{r.ID, client}] = append(cat.heads[headKey{r.ID, client}], id)
	}
	cat.c.Log.Info("received a model", "model", r.Name, "run", r.Run, "version", r.Version, "clients_with_personal_layers", len(heads))
	return nil
}

type headKey struct{ model, client string }

// read reads the file's models and lists its weights.
func (cat *catalog) read() error {
	return cat.db.View(func(tx *bolt.Tx) error {
		if err := getJSON(tx, metaBucket, droppedKey, droppedFormat, &cat.dropped); err != nil {
			return err
		}
		err := tx.Bucket(modelsBucket).ForEach(func(key, _ []byte) error {
			b, err := get(tx, modelsBucket, key, modelFormat)
			if err != nil {
				return err
			}
			var r modelRecord
			if err := r.decode(b); err != nil {
				return err
			}
			m := cat.newModel(r)
			if m.err != nil {
				cat.c.Log.Error("cannot use a stored model", "error", m.err)
			}
			cat.models[r.ID] = m
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(headsBucket).ForEach(func(key, _ []byte) error {
			b, err := get(tx, headsBucket, key, headFormat)
			if err != nil {
				return err
			}
			var h head
			if err := h.decode(b); err != nil {
				return err
			}
			k := headKey{h.Model, h.Client}
			cat.heads[k] = append(cat.heads[k], number(key))
			return nil
		})
	})
}

// newest returns the models of a role, newest first.
func (cat *catalog) newest(role release.Role) []*model {
	var out []*model
	for _, m := range cat.models {
		if m.Role == role && m.serve != nil {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *model) int {
		return cmp.Or(cmp.Compare(b.Received, a.Received), cmp.Compare(b.Version, a.Version), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// openFolder stores the model of a folder for clients, unless it is stored already.
func (cat *catalog) openFolder(dir string, clients []string, now int64) error {
	f, err := serve.Open(dir, nil, cat.c.Kernel)
	if err != nil {
		return fmt.Errorf("cannot open the model %s: %w", dir, err)
	}
	defer func() { _ = f.Close() }() // the file was only read
	plan, err := recipe.Write(f.Model.Plan)
	if err != nil {
		return err
	}
	r := modelRecord{Name: cmp.Or(f.Model.Plan.Name, filepath.Base(dir)), Role: release.Personal, Received: now, Folder: true, Plan: plan, Shared: f.Model.Shared()}
	if f.Model.Problem.Partition.PersonalLen() == 0 {
		r.Role = release.Generic
	}
	version, err := serve.Version(dir)
	if err != nil {
		return fmt.Errorf("cannot open the model %s: %w", dir, err)
	}
	r.Version, _ = strconv.Atoi(version) // weights without a version have version 0
	sum := sha256.Sum256(r.encodeContent())
	r.ID = "folder-" + hex.EncodeToString(sum[:8])
	cat.folder = r.ID
	if _, ok := cat.models[r.ID]; ok {
		return nil
	}
	var heads []*head
	for _, name := range clients {
		c, err := f.Client(name)
		if err != nil {
			cat.c.Log.Info("the model has no weights of a client; they are fitted from its readings", "client", name, "reason", err)
			continue
		}
		h := newHead(r.ID, name, now, trained, c)
		if h.State, err = f.State(name, nil); err != nil {
			return fmt.Errorf("cannot open the model %s: %w", dir, err)
		}
		heads = append(heads, h)
	}
	return cat.addModel(r, heads)
}

// encodeContent returns the part of a record that distinguishes models.
func (r *modelRecord) encodeContent() []byte {
	x := modelRecord{Name: r.Name, Plan: r.Plan, Shared: r.Shared}
	return x.encode()
}

// droppedKey is the key of the IDs of releases that prune removed.
var droppedKey = []byte("dropped")

var droppedFormat = stateformat.Format{Name: "the list of removed models", Magic: "LSLVDROP", Version: 1}

func (cat *catalog) putDropped(tx *bolt.Tx) error {
	maps.DeleteFunc(cat.dropped, func(_ string, release bool) bool { return !release })
	return putJSON(tx, metaBucket, droppedKey, droppedFormat, cat.dropped)
}

// replay advances the state of a runner to the cutoff, with the readings of its client. The
// function each receives the issues and the model's own point forecasts. It may be nil.
func (cat *catalog) replay(d *series.Dataset, r *runner, gen *generic, cutoff int64, each func(f issue.Forecast, bare []float32)) error {
	var (
		own, other   *serve.Model
		ownC, otherC *serve.Client
	)
	if cat.reason(r.model) == "" {
		own, ownC = r.model.serve, &r.client
	}
	if gen != nil {
		other, otherC = gen.model.serve, &gen.client
	}
	p := serve.NewReplay(d, own, other)
	if each != nil {
		var own *spy
		p.Wrap = func(f issue.Forecaster) issue.Forecaster {
			own = &spy{Forecaster: f}
			return own
		}
		p.Each = func(f issue.Forecast) {
			var bare []float32
			if own != nil {
				bare, own.bare = own.bare, nil
			}
			each(f, bare)
		}
	}
	return p.Advance(r.state, 0, ownC, otherC, cutoff)
}
