package server

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/round"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
)

// added returns the sum of masked results as a region sends it. The names are those of the agents,
// in ascending order.
func (st *station) added(names []string, all ...*v1.Result) *v1.Result {
	st.Helper()
	q := proto.CloneOf(all[0])
	q.Shares, q.Nonce, q.Part = nil, nil, 0
	sum := make([]uint64, len(all[0].Chunk)/8)
	for i, r := range all {
		testkit.Must(st, round.AddVector(sum, r.Chunk))
		q.Shares = append(q.Shares, r.Shares...)
		q.Members = append(q.Members, &v1.MaskedResult{Agent: names[i], Part: r.Part, Clients: int64(len(r.Shares)), Nonce: r.Nonce})
	}
	return whole(q, round.AppendVector(nil, sum))
}

// TestRegionOfPrivateRun trains private rounds with agents of a hub and of a region. The
// weights equal those of the plain run, the hub asks the keeper once for all agents, and the
// region deletes what it has forwarded. The hub still counts the region's sums after an agent has
// reused the part of a counted result.
func TestRegionOfPrivateRun(t *testing.T) {
	k := []*open{newOpen(t)}
	hub := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k[0].address("auditor")} })
	testkit.Eventually(t, "the keeper has answered", func() bool { return hub.keepers.Least("auditor") == 2 })
	region := newRegion(t, hub, nil)
	a, b, c := hub.join("a0"), region.join("r0", "r1"), region.join("r2")
	testkit.Eventually(t, "the region knows the hub's keepers", func() bool {
		s, err := b.Announce(b.ctx, &v1.AnnounceRequest{Clients: []string{"r0", "r1"}, StepSeconds: 3600})
		testkit.Must(t, err)
		return len(s.Statements) == 1
	})
	plain, hidden := hub.begin(plainPlan, 4), hub.begin(strings.ReplaceAll(hiddenPlan, ", union", ""), 4)
	accepted := func(r *raw, q *v1.Result) {
		t.Helper()
		s, err := r.Push(r.ctx, q)
		testkit.Must(t, err)
		if s.Outcome != v1.Outcome_OUTCOME_ACCEPTED {
			t.Fatalf("the region's answer is %v: %s", s.Outcome, s.Reason)
		}
	}
	for in := range int64(2) {
		x, y := a.task(plain, in), b.task(plain, in)
		a.counted(hub.sum(x, "a0"))
		accepted(b, region.sum(y, "r0", "r1"))
		accepted(c, region.sum(c.task(plain, in), "r2"))
		x, y = a.task(hidden, in), b.task(hidden, in)
		if !proto.Equal(x.Privacy, y.Privacy) || x.Weights != y.Weights {
			t.Error("the region's task differs from the hub's")
		}
		accepted(b, region.masked(y, b.id, 0, k, "r0", "r1"))
		accepted(c, region.masked(c.task(hidden, in), c.id, 0, k, "r2"))
		a.counted(hub.masked(x, a.id, 0, k, "a0"))
		if got, want := hub.weights(hidden, in+1), hub.weights(plain, in+1); got != want {
			t.Errorf("the weights of version %d differ from those of the plain run", in+1)
		}
		testkit.Eventually(t, "the hub counts the region's results", func() bool {
			return b.heard(hidden, in, "r1") == v1.Outcome_OUTCOME_COUNTED && c.heard(hidden, in, "r2") == v1.Outcome_OUTCOME_COUNTED
		})
		k[0].mu.Lock()
		asked := k[0].releases[in]
		k[0].mu.Unlock()
		var names []string
		for _, m := range asked[0].Results {
			names = append(names, m.Agent)
		}
		want := []string{a.id, b.id, c.id}
		slices.Sort(want)
		if len(asked) != 1 || !slices.Equal(names, want) || !strings.HasPrefix(b.id, region.Hub.Name+".") {
			t.Errorf("the keeper was asked %d times, for %v, want %v", len(asked), names, want)
		}
	}
	x, y := a.task(hidden, 2), b.task(hidden, 2)
	for table, want := range map[string]int{"masks": 0, "partials": 0, "updates": 0, "private_rounds": 1} {
		var n int
		testkit.Must(t, region.ledger.Store.DB.QueryRow("SELECT count(*) FROM "+table+" WHERE run = $1", hidden).Scan(&n))
		if n != want {
			t.Errorf("the region has %d rows in %s after the hub's verdicts, want %d", n, table, want)
		}
	}
	accepted(b, region.masked(y, b.id, 0, k, "r0"))
	testkit.Eventually(t, "the hub counts a result", func() bool { return b.heard(hidden, 2, "r0") == v1.Outcome_OUTCOME_COUNTED })
	if s, err := b.Push(b.ctx, region.masked(y, b.id, 0, k, "r1")); err != nil || s.Outcome != v1.Outcome_OUTCOME_REJECTED || !strings.Contains(s.Reason, "rule part") {
		t.Errorf("the same part again: %v, %v", s, err)
	}
	accepted(b, region.masked(y, b.id, 1, k, "r1"))
	accepted(c, region.masked(c.task(hidden, 2), c.id, 0, k, "r2"))
	a.counted(hub.masked(x, a.id, 0, k, "a0"))
	hub.weights(hidden, 3)
}

// TestLyingRegion sends sums of a region that lies about their members. The hub refuses these
// sums and names the rule. An old sum that is sent again cannot be unmasked.
func TestLyingRegion(t *testing.T) {
	k := []*open{newOpen(t)}
	st := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k[0].address("auditor")} })
	a, r, other := st.join("a0", "a1"), st.join("r0", "r1", "r2"), st.join("o0")
	plan := strings.NewReplacer(", union", "", "rounds: 3", "rounds: 9").Replace(hiddenPlan)
	run := st.start(plan)
	x, y, z := a.task(run, 0), r.task(run, 0), other.task(run, 0)
	names := []string{r.id + ".a", r.id + ".b"}
	part := func(task *v1.Task, name string, part int64, clients ...string) *v1.Result {
		return st.masked(task, name, part, k, clients...)
	}
	both := st.added(names, part(y, names[0], 0, "r0", "r1"), part(y, names[1], 0, "r2"))
	wrong := func(by *raw, what, want string, q *v1.Result, change func(*v1.Result)) {
		t.Helper()
		q = proto.CloneOf(q)
		change(q)
		s, err := by.Push(by.ctx, q)
		testkit.Must(t, err)
		if s.Outcome != v1.Outcome_OUTCOME_REJECTED || !strings.Contains(s.Reason, want) {
			t.Errorf("%s: %v, %s", what, s.Outcome, s.Reason)
		}
	}
	set := func(i int, change func(m *v1.MaskedResult)) func(*v1.Result) {
		return func(q *v1.Result) { change(q.Members[i]) }
	}
	wrong(r, "the same member twice", "rule twice: "+names[0]+", part 0, is in the sum twice", both, set(1, func(m *v1.MaskedResult) { m.Agent = names[0] }))
	wrong(r, "a member of the hub", "rule member: "+a.id+" is not behind the region "+r.id, both, set(0, func(m *v1.MaskedResult) { m.Agent = a.id }))
	wrong(r, "itself", "rule member: "+r.id, both, set(0, func(m *v1.MaskedResult) { m.Agent = r.id }))
	wrong(r, "a member of another region", "rule member: ", both, set(1, func(m *v1.MaskedResult) { m.Agent = other.id + ".b" }))
	wrong(r, "a name that no agent has", "rule member: ", both, set(1, func(m *v1.MaskedResult) { m.Agent = r.id + ".\n" }))
	wrong(r, "another order", "rule members: the members are not in the order", both, func(q *v1.Result) { slices.Reverse(q.Members) })
	wrong(r, "fewer clients", "rule members: the members have 2 clients, and the sum has 3", both, set(0, func(m *v1.MaskedResult) { m.Clients = 1 }))
	wrong(r, "no clients", "rule members: a result of agent", both, set(0, func(m *v1.MaskedResult) { m.Clients = 0 }))
	wrong(r, "a long nonce", "rule members: a result of agent", both, set(0, func(m *v1.MaskedResult) { m.Nonce = make([]byte, 17) }))
	wrong(r, "many parts", "rule members: a result of agent", both, set(0, func(m *v1.MaskedResult) { m.Part = member.MaxParts }))
	wrong(r, "a mask of its own", "rule members: a result with members must be masked, without a nonce", both, func(q *v1.Result) { q.Nonce = make([]byte, 16) })
	wrong(r, "a plain sum", "the plan is private, and the result is not masked", both, func(q *v1.Result) { q.Form = v1.Form_FORM_SUM })
	wrong(r, "one member less", "rule members: the members have 2 clients, and the sum has 3", both, func(q *v1.Result) { q.Members = q.Members[:1] })
	wrong(other, "a sum of another region", "rule member: ", both, func(q *v1.Result) { q.Shares = sharesOf("o0") })

	// A member is counted once in a round, even if it is in several sums.
	r.counted(st.added(names[:1], part(y, names[0], 0, "r0", "r1")))
	wrong(r, "a counted member", "rule part: another result of agent "+names[0]+" is number 0 of the round", st.added(names[:1], part(y, names[0], 0, "r2")), func(*v1.Result) {})
	last := st.added(names[1:], part(y, names[1], member.MaxParts-1, "r2"))
	r.counted(last)
	r.counted(last) // the answer to it was lost
	a.counted(part(x, a.id, 0, "a0", "a1"))
	other.counted(part(z, other.id, 0, "o0"))
	st.weights(run, 1)
	rounds, err := st.ledger.Rounds(t.Context(), run, 0, 9)
	testkit.Must(t, err)
	if i := slices.IndexFunc(rounds, func(r ledger.Round) bool { return r.Round == 0 }); i < 0 || rounds[i].Counted != 6 {
		t.Errorf("rounds %+v, want 6 counted clients in the first", rounds)
	}

	// The sum of the last round cannot be unmasked in the next round. The round is abandoned,
	// and the weights do not change.
	x, y, z = a.task(run, 1), r.task(run, 1), other.task(run, 1)
	a.counted(part(x, a.id, 0, "a0", "a1"))
	other.counted(part(z, other.id, 0, "o0"))
	both.Round, both.Version = y.Round, y.Version
	r.counted(both)
	testkit.Eventually(t, "the round is abandoned", func() bool {
		s, err := st.operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run})
		testkit.Must(t, err)
		return s.Run.Version == 1 && strings.Contains(s.Run.Reason, "round 2 was abandoned: the sum of the results is impossible")
	})
}

// sharesOf returns the shares of clients in a masked result.
func sharesOf(clients ...string) (all []*v1.Share) {
	for _, c := range clients {
		all = append(all, &v1.Share{Client: c})
	}
	return all
}

// TestRegionMustNotAddChecked checks that a region cannot hide a result from the check of norms
// by adding it to a sum.
func TestRegionMustNotAddChecked(t *testing.T) {
	k := []*open{newOpen(t)}
	st := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k[0].address("auditor")} })
	a, r := st.join("a0", "a1"), st.join("r0", "r1")
	run := st.start(strings.NewReplacer("check: none", "check: norm", "clip: 0", "clip: 1.5", ", union", "").Replace(hiddenPlan))
	x, y := a.task(run, 0), r.task(run, 0)
	names := []string{r.id + ".a", r.id + ".b"}
	good, long := st.masked(y, names[0], 0, k, "r0"), st.maskedTimes(1000, y, names[1], 0, k, "r1")
	for want, q := range map[string]*v1.Result{
		"rule check: a keeper checks each result of this plan": st.added(names, good, st.masked(y, names[1], 0, k, "r1")),
		"the check of keeper auditor refused the result":       st.added(names[1:], long),
	} {
		if s, err := r.Push(r.ctx, q); err != nil || s.Outcome != v1.Outcome_OUTCOME_REJECTED || !strings.Contains(s.Reason, want) {
			t.Errorf("%v, %v, want %q", s, err, want)
		}
	}
	r.counted(st.added(names[:1], good))
	a.counted(st.masked(x, a.id, 0, k, "a0", "a1"))
	st.weights(run, 1)
}

// TestEnrolBehindRegion checks which enrolments a hub forwards.
func TestEnrolBehindRegion(t *testing.T) {
	k, uninvited := newOpen(t), newOpen(t)
	uninvited.says.Rules.Invited = false
	st := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k.address("auditor"), uninvited.address("uninvited")} })
	testkit.Eventually(t, "the keepers have answered", func() bool { return st.keepers.Least("auditor") == 2 && st.keepers.Least("uninvited") == 2 })
	r, a, limited := st.join(), st.join(), st.join()
	_, err := st.ledger.Store.Write.Exec("UPDATE agents SET most_clients = 3 WHERE id = $1", limited.id)
	testkit.Must(t, err)
	pin := member.PinOf(k.says.Identity)
	key := mask.NewKey()
	enrol := func(by *raw, agent string, times int) (*v1.EnrolResponse, error) {
		sealed, err := member.Seal(k.says, agent, &key, 1, member.Code{})
		testkit.Must(t, err)
		return by.Enrol(by.ctx, &v1.EnrolRequest{Agent: agent, Enrolments: slices.Repeat([]*v1.Enrolment{{Keeper: pin[:], Sealed: sealed}}, times)})
	}
	for _, agent := range []string{a.id, r.id, a.id + ".a", r.id + "a", r.id + "." + strings.Repeat("a", 128), r.id + ".\x1b"} {
		if _, err := enrol(r, agent, 1); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "rule member") {
			t.Errorf("%q: %v", agent, err)
		}
	}
	if _, err := enrol(r, r.id+".a", 5); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("five enrolments: %v", err)
	}
	long := &v1.EnrolRequest{Agent: r.id + ".a", Enrolments: []*v1.Enrolment{{Keeper: pin[:], Sealed: make([]byte, keepers.SealedBytes+1)}}}
	if _, err := r.Enrol(r.ctx, long); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a sealed message that is too long: %v", err)
	}
	if s, err := enrol(limited, limited.id+".a", 1); err != nil || len(s.Receipts) != 1 || !strings.Contains(s.Receipts[0].Refused, "is not a region") {
		t.Errorf("of an agent with a limit on its clients: %v, %v", s, err)
	}
	// A region can invent members of a keeper that needs no invitations, so it may not forward any.
	free := member.PinOf(uninvited.says.Identity)
	if s, err := r.Enrol(r.ctx, &v1.EnrolRequest{Agent: r.id + ".a", Enrolments: []*v1.Enrolment{{Keeper: free[:], Sealed: []byte("sealed")}}}); err != nil || len(s.Receipts) != 1 ||
		!strings.Contains(s.Receipts[0].Refused, "rule member: behind a region, members need invitations") {
		t.Errorf("with a keeper that needs no invitations: %v, %v", s, err)
	}
	if all := slices.Concat(k.enrolled(), uninvited.enrolled()); len(all) > 0 {
		t.Errorf("keepers were asked to enrol %v", all)
	}
	if s, err := enrol(r, r.id+".a", 1); err != nil || len(s.Receipts) != 1 || len(s.Statements) != 2 || !slices.Equal(k.enrolled(), []string{r.id + ".a"}) {
		t.Errorf("%v, %v; the keeper was asked to enrol %v", s, err, k.enrolled())
	}
}
