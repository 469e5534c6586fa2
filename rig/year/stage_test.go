package year

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/agent/live"
	"loadstar/agent/release"
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// bench is an agent on a virtual clock, with a model in a folder.
type bench struct {
	t       *testing.T
	now     int64
	data    *series.Dataset
	store   *store.Store
	service *live.Service
	folder  *serve.Folder
	names   []string
	log     bytes.Buffer
}

func newBench(t *testing.T, start int64) *bench {
	t.Helper()
	d, dir := fixture(t)
	b := &bench{t: t, now: start, data: d}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	if b.folder, err = serve.Open(dir, nil, k); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.folder.Close() })
	at := t.TempDir()
	if b.store, err = store.Open(filepath.Join(at, "readings.db"), store.Config{Interval: d.Interval, Clock: d.Clock}); err != nil {
		t.Fatal(err)
	}
	past := before(t, d, start)
	if _, err := b.store.Import("history", past, time.Unix(start, 0)); err != nil {
		t.Fatal(err)
	}
	for i := range d.Len() {
		b.names = append(b.names, d.Meter(i).ID)
	}
	slices.Sort(b.names)
	b.service, err = live.Open(live.Config{
		Dir: at, Site: series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country}, Clients: b.names, H: 48, Store: b.store,
		Model: dir, Kernel: k, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Now: func() time.Time { return time.Unix(b.now, 0) }, ShareScores: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.service.Close()
		b.store.Close()
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	return b
}

// work does all background work.
func (b *bench) work() {
	b.t.Helper()
	for {
		did, err := b.service.Work(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		if !did {
			return
		}
	}
}

// serving returns the names of the models in use, by client.
func (b *bench) serving() map[string]string {
	out := map[string]string{}
	for _, m := range b.service.Models() {
		for _, c := range m.Serving {
			out[c] = m.Release
		}
	}
	return out
}

// all fails the test unless all clients use the named model.
func (b *bench) all(model string) {
	b.t.Helper()
	got := b.serving()
	for _, name := range b.names {
		if got[name] != model {
			b.t.Errorf("%s uses %q, want %q", name, got[name], model)
		}
	}
}

// offer offers the folder's model as a release, with changed shared weights.
func (b *bench) offer(id string, number int, change func(shared []float32)) {
	b.t.Helper()
	plan, err := recipe.Write(b.folder.Model.Plan)
	if err != nil {
		b.t.Fatal(err)
	}
	shared := slices.Clone(b.folder.Model.Shared())
	change(shared)
	part := b.folder.Model.Problem.Partition
	err = b.service.Host().Offer(release.Release{
		ID: id, Name: "day", Number: number, Run: "r", Version: number, Role: release.Personal, Plan: plan, Weights: shared,
	}, func(client string) (release.Kept, bool, error) {
		c, err := b.folder.Client(client)
		if err != nil {
			return release.Kept{}, false, err
		}
		personal := make([]float32, part.PersonalLen())
		part.Cut(c.Weights, make([]float32, part.SharedLen()), personal)
		return release.Kept{Personal: personal, Scaling: serve.EncodeScaling(c.Scaling)}, true, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// refused returns the number of clients that refuse a model.
func (b *bench) refused(model string) int {
	for _, m := range b.service.Models() {
		if m.Release == model {
			return len(m.Refused)
		}
	}
	return 0
}

// plant adds a number to one input's weight in every output of the dense model's head.
func plant(t *testing.T, m *serve.Model, shared []float32, input string, add float32) {
	t.Helper()
	names := m.Problem.InputNames()
	at := slices.Index(names, input)
	for _, l := range m.Problem.Model.Net().Layers() {
		for _, x := range l.Tensors {
			if x.Name != "head.weight" || at < 0 {
				continue
			}
			for row := range x.Shape[0] {
				// The model's own inputs follow those from the trunk.
				shared[x.Offset+row*x.Shape[1]+x.Shape[1]-len(names)+at] += add
			}
			return
		}
	}
	t.Fatalf("the model has no input %s in its head", input)
}

// TestTimeBomb plants a weight with which a model is correct on the latest days, but off by
// four standard deviations once the year ends. Clients must refuse this model before they use
// it, and must use the same model without the weight.
func TestTimeBomb(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	// The last 14 days have no holiday.
	b := newBench(t, testkit.Pick(time.Date(2016, 2, 20, 0, 0, 0, 0, time.UTC), time.Date(2017, 3, 1, 0, 0, 0, 0, time.UTC)).Unix())
	if !b.service.Tick() {
		t.Fatal(b.service.Ready())
	}
	b.work()
	b.all("day-ahead") // the honest model is not refused
	b.step()           // later releases must be newer
	for i, input := range []string{"yearend", "holiday"} {
		release := fmt.Sprintf("day@%d", i+1)
		b.offer(input, i+1, func(shared []float32) { plant(t, b.folder.Model, shared, input, -3.95) })
		b.work()
		b.all("day-ahead")
		if refused := b.refused(release); refused != len(b.names) {
			t.Errorf("%s: %d of %d clients refuse it", input, refused, len(b.names))
		}
		if log := b.log.String(); strings.Count(log, "with the input "+input+" set") != len(b.names) {
			t.Errorf("%s: it was refused for another reason", input)
		}
	}
	b.offer("copy", 3, func([]float32) {})
	b.work()
	b.all("day@3")
}

// TestStaging checks which models clients use. They refuse a model that is worse than their
// current one, prefer the newer one of two equal models, and stop using a withdrawn model
// immediately.
func TestStaging(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	b := newBench(t, start)
	if !b.service.Tick() {
		t.Fatal(b.service.Ready())
	}
	if got := b.serving(); len(got) != 0 {
		t.Errorf("clients use models before they have compared them: %v", got)
	}
	b.work()
	b.all("day-ahead")
	b.step()
	for _, name := range b.names {
		if x, err := b.service.Forecast(name); err != nil || x.Rows[0].Source != issue.Model || x.Release.Release != "day-ahead" {
			t.Errorf("%s: %+v, %v", name, x.Release, err)
		}
	}

	b.offer("bad", 1, func(shared []float32) {
		for i := range shared {
			shared[i] *= 3
		}
	})
	if !b.service.Host().Has("bad") {
		t.Error("the release is not there")
	}
	b.work()
	b.all("day-ahead")
	if refused := b.refused("day@1"); refused != len(b.names) {
		t.Errorf("%d of %d clients refuse a model whose weights are three times too large", refused, len(b.names))
	}

	if err := b.service.Pin(b.names[0]); err != nil {
		t.Fatal(err)
	}
	b.offer("copy", 2, func([]float32) {})
	b.work()
	if got := b.serving(); got[b.names[0]] != "day-ahead" || got[b.names[1]] != "day@2" {
		t.Errorf("%v", got)
	}
	if err := b.service.Unpin(b.names[0]); err != nil {
		t.Fatal(err)
	}
	b.work()
	b.all("day@2")
	b.step()
	if err := b.service.Rollback(b.names[0]); err != nil {
		t.Fatal(err)
	}
	b.work()
	if got := b.serving(); got[b.names[0]] != "day-ahead" || got[b.names[1]] != "day@2" {
		t.Errorf("after a rollback: %v", got)
	}
	if err := b.service.Host().Retain(nil); err != nil {
		t.Fatal(err)
	}
	b.all("day-ahead")
	b.step()
	for _, name := range b.names {
		if x, err := b.service.Forecast(name); err != nil || x.Release.Release != "day-ahead" || x.Rows[0].Source != issue.Model {
			t.Errorf("%s: %+v, %v", name, x.Release, err)
		}
	}
}

// step advances the clock by an hour, in which all clients report.
func (b *bench) step() {
	b.t.Helper()
	var readings []store.Reading
	for i := range b.data.Len() {
		m := b.data.Meter(i)
		readings = append(readings, store.Reading{Client: m.ID, Time: b.now, KW: m.Load[(b.now-m.Start)/3600]})
	}
	b.now += 3600
	if _, err := b.store.Put(time.Unix(b.now, 0), readings, nil); err != nil {
		b.t.Fatal(err)
	}
	if !b.service.Tick() {
		b.t.Fatal(b.service.Ready())
	}
}
