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
	"loadstar/internal/stateformat"
)

var nan = float32(math.NaN())

// model is a model that the agent has.
type model struct {
	modelRecord
	// serve is nil if the model cannot be used here; err says why.
	serve *serve.Model
	err   error
}

// newModel makes a stored model usable.
func (s *Service) newModel(r modelRecord) *model {
	m := &model{modelRecord: r}
	p, err := recipe.Read(r.Plan)
	if err == nil {
		m.serve, err = serve.NewModel(r.Name, p, r.Shared, s.c.Kernel)
	}
	if err != nil {
		m.err = fmt.Errorf("model %s cannot be used: %w", r.Name, err)
	}
	m.Plan, m.Shared = nil, nil // the model has them
	return m
}

// reason says why a model cannot forecast for the site, or is empty.
func (s *Service) reason(m *model) issue.Reason {
	switch {
	case m == nil || m.serve == nil:
		return issue.NoRelease
	case m.serve.Step != 0 && m.serve.Step != s.c.Site.Interval:
		return issue.StepDiffers
	}
	return ""
}

// runner is a contender in use: a model with the weights and the state of a client. A runner
// without a model has only fallbacks.
type runner struct {
	id     uint64 // of the head, 0 without a model
	model  *model
	client serve.Client
	made   int64
	origin origin
	// begin is the encoded state at the end of training, or nil.
	begin []byte
	state *issue.State
}

// newState returns an empty state of a client.
func (s *Service) newState() (*issue.State, error) {
	return issue.NewState(s.issueConfig())
}

func (s *Service) issueConfig() issue.Config {
	return issue.Config{Step: s.c.Site.Interval, Clock: s.c.Site.Clock, H: s.c.H, Levels: s.c.Levels, Fallback: s.c.Fallback}
}

// runner returns the runner of a head, with an empty state.
func (s *Service) runner(id uint64) (*runner, error) {
	r := &runner{id: id}
	var err error
	if r.state, err = s.newState(); err != nil || id == 0 {
		return r, err
	}
	h := &head{}
	err = s.db.View(func(tx *bolt.Tx) error {
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
	return r, s.fill(r, h)
}

// fill sets the model and the weights of a runner.
func (s *Service) fill(r *runner, h *head) error {
	m := s.models[h.Model]
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

// newHead returns the head of a client's weights.
func newHead(model, client string, made int64, from origin, c serve.Client) *head {
	return &head{Model: model, Client: client, Made: made, Origin: from, Weights: c.Weights, Scaling: serve.EncodeScaling(c.Scaling)}
}

// putHead stores weights and returns their number.
func putHead(tx *bolt.Tx, h *head) (uint64, error) {
	id, err := tx.Bucket(headsBucket).NextSequence()
	if err != nil {
		return 0, err
	}
	return id, put(tx, headsBucket, numberKey(id), headFormat, h.encode())
}

// addModel stores a model with the heads of the clients that have some.
func (s *Service) addModel(r modelRecord, heads []*head) error {
	m := s.newModel(r)
	if m.err != nil {
		return m.err
	}
	numbers := map[string]uint64{}
	err := s.db.Update(func(tx *bolt.Tx) error {
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
	s.models[r.ID] = m
	for client, id := range numbers {
		s.heads[headKey{r.ID, client}] = append(s.heads[headKey{r.ID, client}], id)
	}
	s.c.Log.Info("received a model", "model", r.Name, "run", r.Run, "version", r.Version, "clients_with_personal_layers", len(heads))
	return nil
}

// headKey identifies the heads of a client for a model.
type headKey struct{ model, client string }

// newest returns the models of a role, the newest first.
func (s *Service) newest(role release.Role) []*model {
	var out []*model
	for _, m := range s.models {
		if m.Role == role && m.serve != nil {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *model) int {
		return cmp.Or(cmp.Compare(b.Received, a.Received), cmp.Compare(b.Version, a.Version), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// openFolder stores the model of a folder, unless it is stored already.
func (s *Service) openFolder(dir string, now int64) error {
	f, err := serve.Open(dir, nil, s.c.Kernel)
	if err != nil {
		return fmt.Errorf("cannot open the model %s: %w", dir, err)
	}
	defer func() { _ = f.Close() }() // it was only read
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
	r.Version, _ = strconv.Atoi(version) // weights without a version have 0
	sum := sha256.Sum256(r.encodeContent())
	r.ID = "folder-" + hex.EncodeToString(sum[:8])
	s.folder = r.ID
	if _, ok := s.models[r.ID]; ok {
		return nil
	}
	var heads []*head
	for _, name := range s.names {
		c, err := f.Client(name)
		if err != nil {
			s.c.Log.Info("the model has no weights of a client; they are fitted from its readings", "client", name, "reason", err)
			continue
		}
		h := newHead(r.ID, name, now, trained, c)
		if h.State, err = f.State(name, nil); err != nil {
			return fmt.Errorf("cannot open the model %s: %w", dir, err)
		}
		heads = append(heads, h)
	}
	return s.addModel(r, heads)
}

// encodeContent returns the part of a record that makes two models different.
func (r *modelRecord) encodeContent() []byte {
	x := modelRecord{Name: r.Name, Plan: r.Plan, Shared: r.Shared}
	return x.encode()
}

// prune removes the models and heads that nobody uses any more: a model that is not among
// the newest three, and heads that are neither in use nor waiting to be compared. It
// remembers the releases: received again, they would look newer than the ones in use.
func (s *Service) prune() error {
	const kept = 3
	used := map[uint64]bool{}
	usedModel := map[string]bool{}
	for _, role := range []release.Role{release.Personal, release.Generic} {
		all := s.newest(role)
		slices.SortStableFunc(all, func(a, b *model) int { // those that fit the site first
			return cmp.Compare(len(s.reason(a)), len(s.reason(b)))
		})
		for i, m := range all {
			usedModel[m.ID] = i < kept || m.ID == s.folder
		}
	}
	for _, m := range s.members {
		for _, id := range append([]uint64{m.rec.Champion, m.rec.Shadow}, m.rec.Before...) {
			used[id] = true
		}
	}
	for key, ids := range s.heads {
		for _, id := range ids {
			if used[id] {
				usedModel[key.model] = true
			}
		}
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		for key, ids := range s.heads {
			m := s.members[key.client]
			waiting := m != nil && usedModel[key.model] && (!slices.Contains(m.rec.Refused, key.model) || m.champion.model == nil && m.rec.retries(key.model))
			left := slices.DeleteFunc(slices.Clone(ids), func(id uint64) bool { return !used[id] && !waiting })
			for _, id := range ids {
				if !slices.Contains(left, id) {
					if err := tx.Bucket(headsBucket).Delete(numberKey(id)); err != nil {
						return err
					}
				}
			}
			if s.heads[key] = left; len(left) == 0 {
				delete(s.heads, key)
			}
		}
		for id := range s.models {
			if !usedModel[id] {
				if err := tx.Bucket(modelsBucket).Delete([]byte(id)); err != nil {
					return err
				}
				s.dropped[id] = !s.models[id].Folder && s.models[id].serve != nil
				delete(s.models, id)
			}
		}
		return s.putDropped(tx)
	})
}

// droppedKey is where the IDs of releases are stored that were removed by prune.
var droppedKey = []byte("dropped")

var droppedFormat = stateformat.Format{Name: "the list of removed models", Magic: "LSLVDROP", Version: 1}

func (s *Service) putDropped(tx *bolt.Tx) error {
	maps.DeleteFunc(s.dropped, func(_ string, release bool) bool { return !release })
	return putJSON(tx, metaBucket, droppedKey, droppedFormat, s.dropped)
}
