package keeper

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

var (
	privateCases = flag.Int("cases", 0, "cases of TestPrivate; 0 means a few")
	privateSeed  = flag.Uint64("first", 1, "first world of TestPrivate")
)

// tally counts the outcomes of cases.
type tally struct {
	Cases   int `json:"cases"`
	Exact   int `json:"exact"`
	Refused int `json:"refused"`
	Wrong   int `json:"wrong"`
	Leaked  int `json:"leaked"`
}

// TestPrivate plays random rounds of random fleets with a server that lies. In each case, the
// server also asks honestly for the round. The sum must be exact, or refused for a reason that
// the test also finds. A checker derives what the server can compute from everything that it
// has seen.
func TestPrivate(t *testing.T) {
	cases := *privateCases
	if cases == 0 {
		if cases = testkit.Pick(2_000, 10_000); testing.Short() {
			cases = 80
		}
	}
	var all tally
	for seed := *privateSeed; all.Cases < cases; seed++ {
		all.add(play(t, seed, min(casesOfWorld, cases-all.Cases), ""))
	}
	if all.Wrong > 0 || all.Leaked > 0 || all.Exact+all.Refused != all.Cases {
		t.Errorf("%+v", all)
	}
	if *privateCases > 0 {
		if 10*all.Exact < 4*all.Cases {
			t.Errorf("%d of %d sums are exact, want 4 of 10", all.Exact, all.Cases)
		}
		if os.Getenv("JSON") != "" {
			data, err := json.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			lastLine = string(data)
			return
		}
		lastLine = fmt.Sprintf("private %d cases, sums exact %d, refused %d, wrong %d, leaked %d", all.Cases, all.Exact, all.Refused, all.Wrong, all.Leaked)
	}
}

// TestPrivatePlanted plants one mistake after another. The checker must find each of them.
func TestPrivatePlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	const within = 1000
	planted := []string{ruleOnce, ruleLeast, ruleQuorum, ruleCell, ruleInvitation, ruleRecord, plantNonce, plantPlain}
	found := 0
	for _, mistake := range planted {
		var all tally
		for seed := uint64(1); all.Cases < within && all.Leaked == 0; seed++ {
			all.add(play(t, seed, min(casesOfWorld, within-all.Cases), mistake))
		}
		if all.Leaked > 0 {
			found++
			fmt.Printf("%-10s found after %d cases\n", mistake, all.Cases)
		} else {
			t.Errorf("%s: not found in %d cases", mistake, all.Cases)
		}
	}
	lastLine = fmt.Sprintf("planted %d, found %d", len(planted), found)
}

func (a *tally) add(b tally) {
	a.Cases, a.Exact, a.Refused, a.Wrong, a.Leaked = a.Cases+b.Cases, a.Exact+b.Exact, a.Refused+b.Refused, a.Wrong+b.Wrong, a.Leaked+b.Leaked
}

// The mistakes that agents can make. The other planted mistakes are rules that the keeper does
// not apply.
const (
	plantNonce = "nonce" // an agent that has trained again reuses its nonce
	plantPlain = "plain" // after a refusal, an agent sends its update without masks
)

const casesOfWorld = 40

// game is a fleet, its keepers, and a server that lies.
type game struct {
	*world
	plant   string
	victims []*agent // agents that are not hostile
	seen    map[string]*seen
	rounds  map[string]int64 // next round of each run
	tally   tally
}

// seen is what the server has seen of a round.
type seen struct {
	q       *v1.MaskedRound
	pushes  []*push
	answers []map[string]map[string]bool // for each keeper: the sums by hash, as sets of masks
	first   []string                     // for each keeper: hash of the request that it has answered
	plain   bool
}

func play(t *testing.T, seed uint64, cases int, plant string) tally {
	t.Helper()
	g := newGame(t, seed, plant)
	for range cases {
		if g.turn(); plant != "" && g.tally.Leaked > 0 {
			break
		}
	}
	for _, k := range g.keepers {
		k.close()
	}
	if plant == "" && g.tally.Wrong+g.tally.Leaked > 0 {
		t.Errorf("world %d, which -first %d -cases %d repeats: %+v", seed, seed, casesOfWorld, g.tally)
	}
	return g.tally
}

func newGame(t *testing.T, seed uint64, plant string) *game {
	rng := rand.New(rand.NewPCG(seed, 21))
	rules := &v1.KeeperRules{Least: 5 + rng.Int64N(6), Quorum: 500 + 100*rng.Int64N(4), Cell: 12 + rng.Int64N(12), Age: 86400, Invited: true}
	members := 30 + rng.IntN(40)
	if rng.IntN(8) == 0 {
		members = 3 + rng.IntN(6) // usually too few
	}
	g := &game{world: newWorld(t, seed, 1+rng.IntN(3), rules, plant), plant: plant, seen: map[string]*seen{}, rounds: map[string]int64{}}
	hostile := rng.IntN(1 + min(members-1, int(rules.Cell)))
	// No rule protects an agent if a sum of the minimum size can contain only hostile members besides it.
	if members <= int(rules.Least)+hostile {
		hostile = min(hostile, int(rules.Least)-2)
	}
	invented := 0
	if plant == ruleInvitation || rng.IntN(4) == 0 {
		invented = 10 * members
	}
	// The server chooses the order in which members join. Its own members join right after the
	// first one.
	for i := range members {
		a, err := g.join(fmt.Sprintf("agent-%04d", i), true)
		if err != nil {
			t.Fatal(err)
		}
		if a.hostile = i > 0 && i <= hostile; !a.hostile {
			g.victims = append(g.victims, a)
		}
	}
	for i := range invented {
		a, err := g.join(fmt.Sprintf("invented-%04d", i), false)
		if plant != ruleInvitation {
			if err == nil {
				g.tally.Wrong++
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		a.hostile = true
	}
	g.clock = g.clock.Add(25 * time.Hour)
	return g
}

// turn plays a case. Agents train, and the server asks honestly for the round, but may lie
// before and after that.
func (g *game) turn() {
	g.tally.Cases++
	if g.rng.IntN(10) == 0 {
		g.clock = g.clock.Add(time.Duration(g.rng.IntN(20)) * time.Hour)
	}
	run := fmt.Sprint("run-", g.rng.IntN(2))
	q := g.round(run, g.rounds[run], 1+g.rng.IntN(20))
	g.rounds[run] += 1 + g.rng.Int64N(2)
	s := &seen{q: q, answers: make([]map[string]map[string]bool, len(g.keepers)), first: make([]string, len(g.keepers))}
	for i := range s.answers {
		s.answers[i] = map[string]map[string]bool{}
	}
	g.seen[fmt.Sprint(run, q.Round)] = s
	all := g.train(s)
	touched := []*seen{s}
	if g.rng.IntN(2) == 0 {
		touched = append(touched, g.lie(s, all))
	}
	g.finish(s, all)
	if g.rng.IntN(3) == 0 {
		touched = append(touched, g.lie(s, all))
	}
	for _, x := range touched {
		if x != nil && g.leaks(x) {
			g.tally.Leaked++
			break
		}
	}
}

// train returns the results that arrive.
func (g *game) train(s *seen) (all []*push) {
	lost := 0.3 * g.rng.Float64()
	for _, a := range g.agents {
		if !a.hostile && g.rng.Float64() < lost {
			continue
		}
		for part := range int64(1 + g.rng.IntN(6)/5) {
			p := g.push(a, s.q, part)
			s.pushes = append(s.pushes, p)
			all = append(all, p)
			if g.plant == plantNonce && g.rng.IntN(20) == 0 { // the agent trained again, with another result
				again := g.push(a, s.q, part)
				again.Clients, again.Nonce = p.Clients, p.Nonce
				s.pushes = append(s.pushes, g.maskAgain(again, s.q))
			}
		}
	}
	return all
}

// finish asks honestly for a round, and compares the outcome with the expected one.
func (g *game) finish(s *seen, all []*push) {
	r := request(s.q, all)
	rule := g.expect(s, r)
	total := make([]uint64, s.q.Length)
	for i := range g.keepers {
		masks, err := g.ask(i, s, r)
		if refused := (*Refusal)(nil); errors.As(err, &refused) {
			if rule == "" || refused.Rule != rule && rule != ruleOnce {
				g.wrong("refused: %v, expected %q", err, rule)
			}
			g.tally.Refused++
			s.plain = s.plain || g.plant == plantPlain
			return
		}
		if err != nil {
			g.t.Fatal(err)
		}
		for j, m := range masks {
			total[j] -= m
		}
	}
	for _, p := range all {
		for j, y := range p.y {
			total[j] += y
		}
	}
	if rule != "" && g.plant == "" || !slices.Equal(total, plain(s.q, all)) {
		g.wrong("released, or wrong: expected %q", rule)
		return
	}
	g.tally.Exact++
}

// wrong counts a wrong outcome. Without a planted mistake, a wrong outcome fails the test.
func (g *game) wrong(format string, a ...any) {
	if g.tally.Wrong++; g.plant == "" {
		g.t.Errorf(format, a...)
	}
}

// expect returns the rule by which an honest request must be refused, or an empty string.
func (g *game) expect(s *seen, r *v1.KeeperReleaseRequest) string {
	key := requestKey(r)
	for i, k := range g.keepers {
		if s.first[i] != "" && s.first[i] != key {
			return ruleOnce
		}
		agents := map[string]bool{}
		for _, x := range r.Results {
			agents[x.Agent] = true
		}
		if int64(len(agents)) < k.options.Rules.Least {
			return ruleLeast
		}
		here, of := map[int64]int64{}, map[int64]int64{}
		for _, m := range k.Members() {
			if of[m.Cell]++; agents[m.Agent] {
				here[m.Cell]++
			}
		}
		for cell, n := range here {
			if 1000*n < k.options.Rules.Quorum*of[cell] {
				return ruleQuorum
			}
		}
	}
	return ""
}

func requestKey(r *v1.KeeperReleaseRequest) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// ask asks a keeper for a release, and records its answer.
func (g *game) ask(keeper int, s *seen, r *v1.KeeperReleaseRequest) ([]uint64, error) {
	masks, err := g.keepers[keeper].release(r)
	if err != nil {
		return nil, err
	}
	key := requestKey(r)
	if s.first[keeper] == "" {
		s.first[keeper] = key
	}
	set := map[string]bool{}
	for _, x := range r.Results {
		set[maskID(r.Round, x)] = true
	}
	s.answers[keeper][key] = set
	return masks, nil
}

// maskID identifies a mask of one keeper.
func maskID(q *v1.MaskedRound, r *v1.MaskedResult) string {
	c := mask.Context{Fleet: q.Fleet, Run: q.Run, Round: q.Round, Version: q.Version, Plan: q.Plan, Weights: q.Weights, Control: q.Control, Length: q.Length, Day: q.Day, Homes: q.Homes}
	terms := mask.Terms{PlanLeast: q.Terms.Least, PlanQuorum: q.Terms.Quorum, Check: q.Terms.Check, Robust: q.Terms.Robust}
	for _, k := range q.Terms.Keepers {
		terms.Keepers = append(terms.Keepers, [32]byte(k))
	}
	c.Terms, c.Limits = terms.Hash(), mask.Limits(member.Clip(q.Clip), member.Blocks(q.Limits))
	member.Of(&c, r)
	return string(append(c.Append(nil), r.Nonce...))
}

// lie makes requests that no honest server makes, and returns the round that they concern.
func (g *game) lie(s *seen, all []*push) *seen {
	if len(all) == 0 || len(g.victims) == 0 {
		return nil
	}
	victim := g.victims[g.rng.IntN(len(g.victims))]
	without := slices.DeleteFunc(slices.Clone(all), func(p *push) bool { return p.of == victim })
	q := proto.CloneOf(s.q)
	var those []*push
	switch g.rng.IntN(10) {
	case 0: // all results but one
		those = without
	case 1: // a random subset
		those = slices.DeleteFunc(slices.Clone(all), func(*push) bool { return g.rng.IntN(5) == 0 })
	case 2: // one victim among the server's own agents
		those = slices.DeleteFunc(slices.Clone(all), func(p *push) bool { return !p.of.hostile && p.of != victim })
	case 3: // the cells with the fewest victims
		those = g.cells(all)
	case 4: // another context
		those = all
		g.pretend(q)
	case 5: // the same result twice
		those = append(slices.Clone(without), without...)
	case 6: // an earlier round again, without one result
		if old := g.earlier(q.Run, s); old != nil {
			g.askAll(old, request(old.q, slices.DeleteFunc(slices.Clone(old.pushes), func(p *push) bool { return p.of == victim })))
			return old
		}
		return nil
	case 7: // another key for an agent
		key := mask.NewKey()
		for _, k := range g.keepers {
			if r, err := k.enrolOne(victim.name, &key, mask.Day(g.clock), member.NewCode()); err != nil || r.Refused == "" {
				g.tally.Wrong++
			}
		}
		return nil
	case 8: // a keeper is killed
		return g.kill(s, all, without)
	case 9: // the results in two parts
		half := len(all) / 2
		g.askAll(s, request(q, all[:half]))
		those = all[half:]
	}
	g.askAll(s, request(q, those))
	return s
}

func (g *game) askAll(s *seen, r *v1.KeeperReleaseRequest) {
	for i := range g.keepers {
		if g.rng.IntN(6) == 0 {
			continue
		}
		if _, err := g.ask(i, s, r); err != nil {
			s.plain = s.plain || g.plant == plantPlain
		}
	}
}

func (g *game) pretend(q *v1.MaskedRound) {
	switch g.rng.IntN(6) {
	case 0:
		q.Version++
	case 1:
		q.Weights += "x"
	case 2:
		q.Limits[0].Limit++
	case 3:
		q.Terms.Least++
	case 4:
		q.Plan += "x"
	case 5:
		q.Day--
	}
}

// cells returns the results of those cells of the first keeper in which the server's own agents
// have the largest share.
func (g *game) cells(all []*push) (those []*push) {
	cell, honest, members := map[string]int64{}, map[int64]int{}, map[int64]int{}
	for _, m := range g.keepers[0].Members() {
		cell[m.Agent] = m.Cell
		members[m.Cell]++
	}
	for _, a := range g.victims {
		honest[cell[a.name]]++
	}
	order := slices.SortedFunc(maps.Keys(members), func(a, b int64) int { return honest[a]*members[b] - honest[b]*members[a] })
	count := 0
	for _, c := range order {
		if honest[c] == 0 && count > 0 {
			continue
		}
		for _, p := range all {
			if cell[p.of.name] == c {
				those = append(those, p)
			}
		}
		if count += members[c]; honest[c] > 0 && int64(count) >= g.keepers[0].options.Rules.Least {
			return those
		}
	}
	return those
}

func (g *game) earlier(run string, s *seen) *seen {
	for round := s.q.Round - 1; round >= 0; round-- {
		if old := g.seen[fmt.Sprint(run, round)]; old != nil {
			return old
		}
	}
	return nil
}

// kill kills one keeper at a random step of a release. Whether the server has the answer
// depends on the step. The keeper then restarts, and the server asks for other results.
func (g *game) kill(s *seen, all, without []*push) *seen {
	i := g.rng.IntN(len(g.keepers))
	k := g.keepers[i]
	dir, err := os.MkdirTemp(g.t.TempDir(), "")
	if err != nil {
		g.t.Fatal(err)
	}
	at, step, died := g.rng.IntN(6), 0, ""
	k.Keeper.options.gate = func(name string) {
		if step++; step-1 == at || name == "answer" && died == "" {
			died = name
			copyFolder(g.t, k.dir, dir)
		}
	}
	for j := range g.keepers {
		if j != i && g.rng.IntN(2) == 0 {
			_, _ = g.ask(j, s, request(s.q, all)) // the request may be refused
		}
	}
	// The process counts as killed at the step, so the server has the answer only if the step
	// is sending it.
	if masks, err := k.release(request(s.q, all)); err == nil && died == "answer" {
		_ = masks
		s.answered(i, request(s.q, all))
	}
	if died == "" { // nothing was written
		k.Keeper.options.gate = nil
		return s
	}
	_ = k.Keeper.Close() // its folder is no longer used
	if err := os.RemoveAll(k.dir); err != nil {
		g.t.Fatal(err)
	}
	k.dir = dir
	k.open(g.t)
	if s.first[i] == "" && died != "before announcement" && g.plant != ruleRecord {
		// The release may be on disk although the answer was not sent. In this case, the keeper
		// answers only the same request.
		if row, err := k.released(s.q.Run, s.q.Round); err == nil && row != nil {
			s.first[i] = requestKey(request(s.q, all))
		}
	}
	g.askAll(s, request(s.q, without))
	return s
}

func (s *seen) answered(keeper int, r *v1.KeeperReleaseRequest) {
	key := requestKey(r)
	if s.first[keeper] == "" {
		s.first[keeper] = key
	}
	set := map[string]bool{}
	for _, x := range r.Results {
		set[maskID(r.Round, x)] = true
	}
	s.answers[keeper][key] = set
}
