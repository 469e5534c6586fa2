package agent

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"loadstar/agent/release"
	"loadstar/agent/state"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/serve"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// fakeHost records the calls of an agent.
type fakeHost struct {
	mu       sync.Mutex
	has      map[string]release.Release
	loaders  map[string]func(string) (release.Kept, bool, error)
	offers   int
	offered  []string // IDs of all offers
	retained [][]string
	fail     int // number of offers to refuse
	reports  []release.Report
	sent     int
}

func newHost() *fakeHost {
	return &fakeHost{has: map[string]release.Release{}, loaders: map[string]func(string) (release.Kept, bool, error){}}
}

func (h *fakeHost) Has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.has[id]
	return ok
}

func (h *fakeHost) Offer(r release.Release, load func(string) (release.Kept, bool, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.offered = append(h.offered, r.ID)
	if h.offers++; h.fail > 0 {
		h.fail--
		return errors.New("not now")
	}
	h.has[r.ID], h.loaders[r.ID] = r, load
	return nil
}

func (h *fakeHost) Retain(ids []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retained = append(h.retained, ids)
	for id := range h.has {
		if !slices.Contains(ids, id) {
			delete(h.has, id)
		}
	}
	return nil
}

func (h *fakeHost) Reports() ([]release.Report, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reports, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.reports = nil
		h.sent++
	}
}

func (h *fakeHost) ids() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for id := range h.has {
		all = append(all, id)
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// offering makes a stub respond to check-ins with a list of releases, and returns a function
// that changes the list. The list's revision counts the changes.
func (s *stub) offering() (change func(all ...*loadstarv1.Release)) {
	list := &loadstarv1.ReleaseList{Revision: 1}
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		if r.Releases != nil && r.GetReleases() != list.Revision {
			a.Releases = list
		}
		return nil
	}
	return func(all ...*loadstarv1.Release) {
		s.mu.Lock()
		defer s.mu.Unlock()
		list = &loadstarv1.ReleaseList{Revision: list.Revision + 1, Releases: all}
	}
}

// TestReleases checks that an agent gets the releases on the server's list, checks them, and
// passes them on with its clients' results from training. It drops releases that are no longer
// on the list.
func TestReleases(t *testing.T) {
	d := meters(t, 3)
	s := newStub(t)
	plan := small("fedavg", settings{"partition": "head"})
	task := s.task(t, "run", 0, plan, 5, namesOf(d)...)
	change := s.offering()
	host := newHost()
	dir := t.TempDir()
	c := config(t, "a", s.http.URL, dir, d)
	c.Releases = host
	stop := start(t, c)
	s.wait(t, "the empty list", func() bool { host.mu.Lock(); defer host.mu.Unlock(); return len(host.retained) == 1 })
	s.give(task)
	s.pushed(t, "run", 0)

	good := func(id string, number int64) *loadstarv1.Release {
		return &loadstarv1.Release{Id: id, Name: "day", Number: number, Run: "run", Version: 1, Role: "personal", Plan: task.Plan, Weights: task.Weights}
	}
	weights := s.blobs[task.Weights]
	spoil := func(id string, change func(r *loadstarv1.Release)) *loadstarv1.Release {
		r := good(id, 1)
		change(r)
		return r
	}
	// replan replaces a release's plan and weights.
	replan := func(r *loadstarv1.Release, plan settings) {
		p, err := recipe.Read(plan.text(t))
		if err != nil {
			t.Fatal(err)
		}
		q, err := recipe.Frame(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if need := footprint(p, q, 1); need > 256<<20 || q.Partition.PersonalLen() == 0 {
			t.Fatalf("the plan is refused for another reason: %d MB", need>>20)
		}
		r.Plan, r.Weights = s.put(plan.text(t)), s.put(make([]byte, 4*q.SharedLen()))
	}
	nan := slices.Clone(weights)
	copy(nan[4*7:], round.AppendFloats(nil, []float32{float32(math.Inf(-1))}))
	bad := []*loadstarv1.Release{
		spoil("role", func(r *loadstarv1.Release) { r.Role = "generic" }),
		spoil("unknown role", func(r *loadstarv1.Release) { r.Role = "profile" }),
		spoil("infinite", func(r *loadstarv1.Release) { r.Weights = s.put(nan) }),
		spoil("too short", func(r *loadstarv1.Release) { r.Weights = s.put(weights[4:]) }),
		spoil("too long", func(r *loadstarv1.Release) { r.Weights = s.put(append(slices.Clone(weights), 0)) }),
		spoil("no weights", func(r *loadstarv1.Release) { r.Weights = "" }),
		spoil("far", func(r *loadstarv1.Release) {
			replan(r, small("fedavg", settings{"partition": "head", "model.horizon": 1 << 30, "model.inputs": []string{"load"}}))
		}),
		spoil("slow", func(r *loadstarv1.Release) {
			replan(r, dense(settings{"model.targets": 5000, "client.batch": 1}))
		}),
		spoil("no plan", func(r *loadstarv1.Release) { r.Plan = s.put([]byte("something else")) }),
		spoil("huge plan", func(r *loadstarv1.Release) { r.Plan = s.put(make([]byte, maxPlan+1)) }),
		spoil("number", func(r *loadstarv1.Release) { r.Number = math.MaxInt64 }),
		spoil("not there", func(r *loadstarv1.Release) { r.Weights = task.Plan[:63] + "x" }),
		spoil("bad name", func(r *loadstarv1.Release) { r.Name = "a\x00b" }),
		spoil("terminal", func(r *loadstarv1.Release) { r.Name = "day\x1b[2J" }),
		spoil("run\u202e", func(r *loadstarv1.Release) {}),
		spoil("", func(r *loadstarv1.Release) {}),
	}
	host.mu.Lock()
	host.fail = 2
	host.mu.Unlock()
	change(append(bad, good("one", 1), good("two", 2))...)
	s.wait(t, "two releases", func() bool { return host.ids() == "[one two]" })

	host.mu.Lock()
	got, load := host.has["one"], host.loaders["one"]
	if slices.ContainsFunc(host.offered, func(id string) bool { return id != "one" && id != "two" }) {
		t.Errorf("bad releases were offered: %q", host.offered)
	}
	host.mu.Unlock()
	want := release.Release{
		ID: "one", Name: "day", Number: 1, Run: "run", Version: 1, Role: release.Personal, Plan: s.blobs[task.Plan], Weights: round.ReadFloats(nil, weights),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	p, err := recipe.Read(plan.text(t))
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s.wait(t, "what a client kept", func() bool { _, ok, _ := load("meter-00"); return ok })
	kept, _, err := load("meter-00")
	if err != nil || len(kept.Personal) != q.Partition.PersonalLen() {
		t.Errorf("%d personal weights, want %d: %v", len(kept.Personal), q.Partition.PersonalLen(), err)
	}
	m := d.Meter(0)
	if scaling, err := serve.DecodeScaling(kept.Scaling); err != nil || !reflect.DeepEqual(scaling.Ranges, q.Framer.Ranges(m)) {
		t.Errorf("%+v, %v, want %+v", scaling, err, q.Framer.Ranges(m))
	}
	if _, ok, err := load("nobody"); ok || err != nil {
		t.Errorf("a client that did not take part: %v, %v", ok, err)
	}

	// A withdrawn release is dropped, and one that returns is fetched again.
	change(good("two", 2))
	s.wait(t, "a release to be left", func() bool { return host.ids() == "[two]" })
	change(good("two", 2), good("three", 3))
	s.wait(t, "another release", func() bool { return host.ids() == "[three two]" })
	change()
	s.wait(t, "all releases to be left", func() bool { return host.ids() == "[]" })
	// Without a change, nothing is sent and nothing happens.
	host.mu.Lock()
	before := len(host.retained)
	host.mu.Unlock()
	n := len(s.checkIns)
	s.wait(t, "some check-ins", func() bool { return len(s.checkIns) > n+5 })
	host.mu.Lock()
	if len(host.retained) != before {
		t.Error("an unchanged list was applied again")
	}
	host.mu.Unlock()
	stop()
	files, _ := filepath.Glob(filepath.Join(dir, "released", "*"))
	if left := slices.DeleteFunc(files, func(f string) bool { _, err := os.Stat(f); return err != nil }); len(left) > blobsKept {
		t.Errorf("%d blobs are left", len(left))
	}
	store, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, _, found, err := store.Read("run", "meter-01"); !found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}

// TestReports checks that reports are sent in pages, and acknowledged when the server has all
// of them. Reports that the server refuses are dropped, so that check-ins continue.
func TestReports(t *testing.T) {
	d := meters(t, 1)
	s := newStub(t)
	got := map[string]*loadstarv1.ClientReport{}
	refuse := false
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		if len(r.Reports) > reportsAtOnce {
			t.Errorf("%d reports at once", len(r.Reports))
		}
		for _, x := range r.Reports {
			got[x.Client] = x
			if refuse {
				return connect.NewError(connect.CodeInvalidArgument, errors.New("no reports please"))
			}
		}
		return nil
	}
	host := newHost()
	for i := range 120 {
		host.reports = append(host.reports, release.Report{
			Client: fmt.Sprint("c", i), Day: 20000, Release: "id", Shares: map[string]float64{"week": 0.25, "model": 0.75}, RelativeMAE: math.NaN(), Coverage: 0.8,
			Findings: []string{"flat"}, Drift: true,
		})
	}
	all := host.reports
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Releases = host
	start(t, c)
	acknowledged := func(n int) func() bool {
		return func() bool { host.mu.Lock(); defer host.mu.Unlock(); return host.sent == n }
	}
	s.wait(t, "the acknowledgement", acknowledged(1))
	s.mu.Lock()
	if len(got) != 120 {
		t.Errorf("%d reports", len(got))
	}
	x := got["c7"]
	if x.RelativeMae != nil || x.GetCoverage() != 0.8 || len(x.Shares) != 2 || x.Shares[0].Source != "model" || x.Shares[1].Share != 0.25 || !x.Drift || x.WantsRound {
		t.Errorf("%v", x)
	}
	refuse = true
	s.mu.Unlock()
	host.mu.Lock()
	host.reports = all[:60]
	host.mu.Unlock()
	s.wait(t, "the refused reports to be dropped", acknowledged(2))
}
