package keeper

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// world contains keepers, and agents that are members of all of them.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	clock   time.Time
	keepers []*station
	agents  []*agent
}

// station is a keeper that can be killed.
type station struct {
	*Keeper
	dir     string
	options Options
}

type agent struct {
	name    string
	hostile bool // the server knows the agent's keys and updates
	keys    []mask.Key
	day     int64 // day of the keys
}

// random is a repeatable source of a keeper's random numbers.
type random struct{ *rand.ChaCha8 }

func (r random) Read(b []byte) (int, error) { return r.ChaCha8.Read(b) }

var _ io.Reader = random{}

func newWorld(t testing.TB, seed uint64, keepers int, rules *v1.KeeperRules, off ...string) *world {
	t.Helper()
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), clock: time.Unix(1_800_000_000, 0)}
	for i := range keepers {
		o := Options{Fleet: "fleet", Rules: rules, Now: func() time.Time { return w.clock }, off: map[string]bool{}, random: random{rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(i)})}}
		for _, rule := range off {
			o.off[rule] = true
		}
		w.keepers = append(w.keepers, newStation(t, o))
	}
	return w
}

func newStation(t testing.TB, o Options) *station {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	s := &station{dir: dir, options: o}
	if _, err := Create(s.dir); err != nil {
		t.Fatal(err)
	}
	s.open(t)
	t.Cleanup(s.close)
	return s
}

func (s *station) open(t testing.TB) {
	t.Helper()
	var err error
	if s.Keeper, err = Open(s.dir, s.options); err != nil {
		t.Fatal(err)
	}
}

func (s *station) close() {
	if s.Keeper != nil {
		_ = s.Keeper.Close() // already closed
	}
	_ = os.RemoveAll(s.dir) // the test's folder is also removed
}

// copyFolder copies files in their current state, which is the state that a crash leaves.
func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	all, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if !e.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// join enrols an agent with all keepers. If invited is set, each keeper's administrators first
// give it an invitation.
func (w *world) join(name string, invited bool) (*agent, error) {
	a := &agent{name: name, day: mask.Day(w.clock)}
	for _, k := range w.keepers {
		var code member.Code
		if invited {
			var err error
			if code, err = k.Invite(1, w.clock.Add(time.Hour), name); err != nil {
				w.t.Fatal(err)
			}
		}
		key := mask.NewKey()
		r, err := k.enrolOne(name, &key, a.day, code)
		if err != nil {
			w.t.Fatal(err)
		}
		if r.Refused != "" {
			return nil, errors.New(r.Refused)
		}
		if !member.ValidReceipt(r, &key, "fleet", name, k.Pin()) {
			w.t.Fatal("the receipt is not valid")
		}
		a.keys = append(a.keys, key)
	}
	w.agents = append(w.agents, a)
	return a, nil
}

func (s *station) enrolOne(name string, key *mask.Key, day int64, code member.Code) (*v1.Receipt, error) {
	sealed, err := member.Seal(s.Statement(), name, key, day, code)
	if err != nil {
		return nil, err
	}
	a, err := s.Enrol(&v1.KeeperEnrolRequest{Fleet: "fleet", Enrolments: []*v1.KeeperEnrolment{{Agent: name, Sealed: sealed}}})
	if err != nil {
		return nil, err
	}
	return a.Receipts[0], nil
}

// fleet adds n members that are old enough to be in a sum.
func (w *world) fleet(n int) {
	w.t.Helper()
	for i := range n {
		if _, err := w.join(fmt.Sprintf("agent-%04d", i), true); err != nil {
			w.t.Fatal(err)
		}
	}
	w.clock = w.clock.Add(25 * time.Hour)
}

// round returns the description of a round that the server sends to all agents.
func (w *world) round(run string, round int64, length int) *v1.MaskedRound {
	q := &v1.MaskedRound{
		Fleet: "fleet", Run: run, Round: round, Version: round, Plan: "plan", Weights: fmt.Sprint(run, round), Length: int64(length), Day: mask.Day(w.clock), Homes: 100,
		Terms:  &v1.PrivacyTerms{Check: "none", Robust: "none"},
		Limits: []*v1.MaskBlock{{Length: int64(length)}},
	}
	for _, k := range w.keepers {
		pin := k.Pin()
		q.Terms.Keepers = append(q.Terms.Keepers, pin[:])
	}
	slices.SortFunc(q.Terms.Keepers, func(a, b []byte) int { return cmp.Compare(string(a), string(b)) })
	return q
}

// push is a masked result.
type push struct {
	*v1.MaskedResult
	of *agent
	x  []uint64
	y  []uint64
}

// mask masks x for a round, as an agent does.
func (w *world) mask(a *agent, q *v1.MaskedRound, part int64, nonce mask.Nonce, x []uint64) *push {
	p := &push{MaskedResult: &v1.MaskedResult{Agent: a.name, Part: part, Clients: 1 + w.rng.Int64N(3), Nonce: nonce[:]}, of: a, x: x, y: slices.Clone(x)}
	for i, k := range w.keepers {
		c := member.Context(k.Statement(), q)
		member.Of(c, p.MaskedResult)
		key := a.keys[i]
		for range q.Day - a.day {
			key = key.Next()
		}
		seed := key.Seed(c, nonce)
		seed.Add(p.y)
	}
	return p
}

func (w *world) push(a *agent, q *v1.MaskedRound, part int64) *push {
	x := make([]uint64, q.Length)
	for i := range x {
		x[i] = uint64(w.rng.Int64N(1<<51) - 1<<50)
	}
	var n mask.Nonce
	for i := range n {
		n[i] = byte(w.rng.Uint32())
	}
	return w.mask(a, q, part, n, x)
}

// request returns a request for the masks of results.
func request(q *v1.MaskedRound, all []*push) *v1.KeeperReleaseRequest {
	r := &v1.KeeperReleaseRequest{Round: q}
	for _, p := range all {
		r.Results = append(r.Results, p.MaskedResult)
	}
	slices.SortFunc(r.Results, func(a, b *v1.MaskedResult) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Part, b.Part))
	})
	return r
}

// release sends a request to a keeper, and checks the signature of the answer.
func (s *station) release(q *v1.KeeperReleaseRequest) ([]uint64, error) {
	a, err := s.Release(proto.CloneOf(q))
	if err != nil {
		return nil, err
	}
	if err := member.Verify(s.Statement().Identity, q, a); err != nil {
		return nil, err
	}
	return numbers(a.Masks), nil
}

func numbers(b []byte) []uint64 {
	v := make([]uint64, len(b)/8)
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return v
}

// open asks all keepers for the masks of a round, and subtracts them from the sum of the
// results.
func (w *world) open(q *v1.MaskedRound, all []*push) ([]uint64, error) {
	total := make([]uint64, q.Length)
	for _, p := range all {
		for i, y := range p.y {
			total[i] += y
		}
	}
	r := request(q, all)
	for _, k := range w.keepers {
		masks, err := k.release(r)
		if err != nil {
			return nil, err
		}
		for i, m := range masks {
			total[i] -= m
		}
	}
	return total, nil
}

// plain returns the sum that open must return.
func plain(q *v1.MaskedRound, all []*push) []uint64 {
	total := make([]uint64, q.Length)
	for _, p := range all {
		for i, x := range p.x {
			total[i] += x
		}
	}
	return total
}

// want fails unless err is a refusal by the given rule.
func want(t testing.TB, err error, rule string) {
	t.Helper()
	refused := (*Refusal)(nil)
	if !errors.As(err, &refused) || refused.Rule != rule {
		t.Errorf("got %v, want a refusal by rule %s", err, rule)
	}
}

func everybody(w *world, q *v1.MaskedRound) (all []*push) {
	for _, a := range w.agents {
		all = append(all, w.push(a, q, 0))
	}
	return all
}

func testRules() *v1.KeeperRules {
	return &v1.KeeperRules{Least: 5, Quorum: 700, Cell: 100, Age: 86400, Invited: true}
}

// checkNoKeys checks that no file in the folder contains the members' keys for a day.
func (s *station) checkNoKeys(t testing.TB, agents []*agent, day int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	find := func(key mask.Key) bool {
		text, err := json.Marshal(key[:])
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(files, func(path string) bool {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Contains(data, text) || bytes.Contains(data, key[:])
		})
	}
	for _, a := range agents {
		key := a.keys[0]
		for d := a.day; d <= day; d++ {
			if find(key) {
				t.Fatalf("the key of %s for day %d is still there", a.name, d)
			}
			key = key.Next()
		}
		if !find(key) {
			t.Fatal("the search finds no key at all")
		}
	}
}
