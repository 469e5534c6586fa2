package keeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// TestRelease unmasks rounds with two keepers, on two days, and repeats one round.
func TestRelease(t *testing.T) {
	w := newWorld(t, 1, 2, testRules())
	w.fleet(12)
	for round := range int64(3) {
		q := w.round("run", round, 300)
		all := everybody(w, q)
		all = append(all, w.push(w.agents[3], q, 1))
		for range 2 {
			got, err := w.open(q, all)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, plain(q, all)) {
				t.Fatal("the sum is wrong")
			}
		}
		w.clock = w.clock.Add(12 * time.Hour)
	}
}

// TestRules tries to circumvent each rule, and checks that the keeper releases nothing.
func TestRules(t *testing.T) {
	w := newWorld(t, 2, 1, testRules())
	w.fleet(20)
	k := w.keepers[0]
	q := w.round("run", 3, 50)
	all := everybody(w, q)
	try := func(rule string, change func(q *v1.KeeperReleaseRequest)) {
		t.Helper()
		r := request(proto.CloneOf(q), all)
		r = proto.CloneOf(r)
		change(r)
		_, err := k.release(r)
		want(t, err, rule)
	}
	try(ruleLeast, func(r *v1.KeeperReleaseRequest) { r.Results = r.Results[:4] })
	try(ruleLeast, func(r *v1.KeeperReleaseRequest) { r.Round.Terms.Least = 21 })
	try(ruleQuorum, func(r *v1.KeeperReleaseRequest) { r.Results = r.Results[:13] })
	try(ruleQuorum, func(r *v1.KeeperReleaseRequest) { r.Round.Terms.Quorum, r.Results = 950, r.Results[:18] })
	try(ruleTwice, func(r *v1.KeeperReleaseRequest) { r.Results[1] = r.Results[0] })
	try(ruleRequest, func(r *v1.KeeperReleaseRequest) { slices.Reverse(r.Results) })
	try(ruleRequest, func(r *v1.KeeperReleaseRequest) { r.Round.Fleet = "other" })
	try(ruleRequest, func(r *v1.KeeperReleaseRequest) { r.Round.Length = 1 << 40 })
	try(ruleRequest, func(r *v1.KeeperReleaseRequest) { r.Round = nil })
	try(ruleRequest, func(r *v1.KeeperReleaseRequest) { r.Results[2].Nonce = nil })
	try(ruleMember, func(r *v1.KeeperReleaseRequest) { r.Results[0].Agent = "agent" })
	try(ruleKeepers, func(r *v1.KeeperReleaseRequest) { r.Round.Terms.Keepers[0][0]++ })
	try(ruleDay, func(r *v1.KeeperReleaseRequest) { r.Round.Day += 2 })
	try(ruleDay, func(r *v1.KeeperReleaseRequest) { r.Round.Day -= 2 })
	try(ruleCheck, func(r *v1.KeeperReleaseRequest) { r.Round.Terms.Check, r.Round.Limits[0].Limit = "norm", 9 })
	// All parts of one agent count as one agent.
	var parts []*push
	for i := range int64(20) {
		parts = append(parts, w.push(w.agents[0], q, i))
	}
	_, err := w.open(q, parts)
	want(t, err, ruleLeast)
	if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
		t.Fatal("the honest request after all these: ", err)
	}
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Results = r.Results[1:] })
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Results[0].Nonce[0]++ })
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Results[0].Clients++ })
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Round.Weights = "others" })
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Round.Limits[0].Limit = 7 })
	try(ruleOnce, func(r *v1.KeeperReleaseRequest) { r.Round.Round = 2 })
	if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
		t.Fatal("the honest request again: ", err)
	}
}

// TestAge checks that a new member is in no sum, not even after a repeated request, and does
// not count for the quorum.
func TestAge(t *testing.T) {
	w := newWorld(t, 3, 1, testRules())
	w.fleet(10)
	if _, err := w.join("young", true); err != nil {
		t.Fatal(err)
	}
	q := w.round("run", 0, 5)
	all := everybody(w, q)
	for range 2 {
		_, err := w.open(q, all)
		want(t, err, ruleAge)
	}
	if _, err := w.open(q, all[:7]); err != nil {
		t.Errorf("7 of 10 old members and a young one: %v", err)
	}
	w.clock = w.clock.Add(24 * time.Hour)
	_, err := w.open(q, all)
	want(t, err, ruleOnce)
}

// TestRoundsCountFromOne checks that the log and the refusals number rounds from 1, as the server does.
func TestRoundsCountFromOne(t *testing.T) {
	w := newWorld(t, 5, 1, testRules())
	w.fleet(10)
	k := w.keepers[0]
	var requests []*v1.KeeperReleaseRequest
	for round := range int64(2) {
		q := w.round("run", round, 5)
		all := everybody(w, q)
		if _, err := w.open(q, all); err != nil {
			t.Fatal(err)
		}
		requests = append(requests, request(q, all))
	}
	entries, err := k.Log(2)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		if want := fmt.Sprintf("run run, round %d: 10 agents", i+1); e.Kind != "release" || !strings.HasPrefix(e.Text, want) {
			t.Errorf("the log has %s %q, want %q", e.Kind, e.Text, want)
		}
	}
	refused := func(round int64, want string) {
		t.Helper()
		q := proto.CloneOf(requests[round])
		q.Results = q.Results[1:]
		if _, err := k.release(q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	refused(1, "round 2 of run run was released")
	q := proto.CloneOf(requests[0])
	q.Round.Round, q.Round.Run = 0, "other"
	later := w.round("other", 1, 5)
	if _, err := w.open(later, everybody(w, later)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.release(q); err == nil || !strings.Contains(err.Error(), "round 1 of run other is over: round 2 was released") {
		t.Errorf("got %v", err)
	}
}

// TestMembers checks that members keep their first key, that invitations are used up, that a
// revoked member is in no sum, and that a reset member counts as a different member in earlier
// released rounds.
func TestMembers(t *testing.T) {
	w := newWorld(t, 4, 1, testRules())
	w.fleet(10)
	k := w.keepers[0]
	q := w.round("run", 0, 5)
	all := everybody(w, q)
	if _, err := w.open(q, all); err != nil {
		t.Fatal(err)
	}
	refused := func(what, name string, key mask.Key, day int64, code member.Code) {
		t.Helper()
		r, err := k.enrolOne(name, &key, day, code)
		if err != nil || r.Refused == "" || len(r.Mac) > 0 {
			t.Errorf("%s: %v, %v", what, r, err)
		}
	}
	accepted := func(what, name string, key mask.Key, day int64, code member.Code) {
		t.Helper()
		r, err := k.enrolOne(name, &key, day, code)
		if err != nil || !member.ValidReceipt(r, &key, "fleet", name, k.Pin()) {
			t.Errorf("%s: %v, %v", what, r, err)
		}
	}
	today := mask.Day(w.clock)
	first := w.agents[0]
	accepted("the same enrolment again", first.name, first.keys[0], first.day, member.Code{})
	refused("another key", first.name, mask.NewKey(), today, member.Code{})
	refused("no invitation", "stranger", mask.NewKey(), today, member.Code{})
	refused("an unknown invitation", "stranger", mask.NewKey(), today, member.NewCode())
	code, err := k.Invite(2, w.clock.Add(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	key := mask.NewKey()
	refused("the day after tomorrow", "b1", key, today+2, code)
	accepted("an invitation for two", "b1", key, today, code)
	accepted("the same again", "b1", key, today, code)
	accepted("the second", "b2", key, today+1, code)
	refused("the third", "b3", key, today, code)
	if code, err = k.Invite(1, w.clock.Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	w.clock = w.clock.Add(2 * time.Hour)
	refused("too late", "b3", key, today, code)

	if err := k.Revoke(w.agents[9].name); err != nil {
		t.Fatal(err)
	}
	_, err = w.open(q, all)
	want(t, err, ruleMember)
	refused("a revoked one", w.agents[9].name, w.agents[9].keys[0], w.agents[9].day, member.Code{})
	q1 := w.round("run", 1, 5)
	if all = everybody(w, q1)[:9]; true {
		if _, err := w.open(q1, all); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Reset(first.name); err != nil {
		t.Fatal(err)
	}
	_, err = w.open(q1, all)
	want(t, err, ruleMember)
	refused("reset, without an invitation", first.name, mask.NewKey(), today, member.Code{})
	if code, err = k.Invite(1, w.clock.Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	accepted("reset, with an invitation", first.name, mask.NewKey(), today, code)
	_, err = w.open(q1, all)
	want(t, err, ruleAge)
	w.clock = w.clock.Add(25 * time.Hour)
	_, err = w.open(q1, all) // the member is old enough now, but was not when the round was released
	want(t, err, ruleAge)
}

// TestReplaced checks that a repeated release never uses a key that has replaced the original
// key, even without a minimum age.
func TestReplaced(t *testing.T) {
	rules := testRules()
	rules.Age = 0
	w := newWorld(t, 5, 1, rules)
	w.fleet(10)
	k := w.keepers[0]
	q := w.round("run", 0, 5)
	all := everybody(w, q)
	if _, err := w.open(q, all); err != nil {
		t.Fatal(err)
	}
	if err := k.Reset(w.agents[0].name); err != nil {
		t.Fatal(err)
	}
	code, err := k.Invite(1, w.clock.Add(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	key := mask.NewKey()
	if r, err := k.enrolOne(w.agents[0].name, &key, mask.Day(w.clock), code); err != nil || r.Refused != "" {
		t.Fatal(r, err)
	}
	_, err = w.open(q, all)
	want(t, err, ruleOnce)
}

// TestKeysGo checks that after two days a round cannot be repeated, and no file contains its
// keys.
func TestKeysGo(t *testing.T) {
	w := newWorld(t, 6, 1, testRules())
	w.fleet(10)
	q := w.round("run", 0, 5)
	all := everybody(w, q)
	if _, err := w.open(q, all); err != nil {
		t.Fatal(err)
	}
	w.clock = w.clock.Add(24 * time.Hour)
	if _, err := w.open(q, all); err != nil {
		t.Errorf("a day later: %v", err)
	}
	w.clock = w.clock.Add(24 * time.Hour)
	_, err := w.open(q, all)
	want(t, err, ruleDay)
	w.keepers[0].checkNoKeys(t, w.agents, mask.Day(w.clock)-2)
}

// TestState checks that the keeper sends the list of members when it has changed.
func TestState(t *testing.T) {
	w := newWorld(t, 7, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	q := &v1.KeeperStateRequest{Fleet: "fleet", Run: "run"}
	a, err := k.State(q)
	if err != nil || len(a.Members) != 6 || a.Newest != -1 || len(a.Directions) != 32 || member.Verify(k.Statement().Identity, q, a) != nil {
		t.Fatal(a, err)
	}
	data, err := proto.Marshal(a.Statement)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := member.ReadStatement(data); err != nil || member.Valid(s, k.Pin(), w.clock) != nil {
		t.Error(s, err)
	}
	q.Members = a.Revision
	b, err := k.State(q)
	if err != nil || len(b.Members) != 0 || string(b.Directions) != string(a.Directions) {
		t.Error(b, err)
	}
	r := w.round("run", 4, 5)
	if _, err := w.open(r, everybody(w, r)); err != nil {
		t.Fatal(err)
	}
	if b, err = k.State(q); err != nil || b.Newest != 4 || len(b.Members) != 6 {
		t.Error(b, err)
	}
	other, err := k.State(&v1.KeeperStateRequest{Fleet: "fleet", Run: "ru"})
	if err != nil || other.Newest != -1 || string(other.Directions) == string(a.Directions) {
		t.Error(other, err)
	}
	_, err = k.State(&v1.KeeperStateRequest{Fleet: "x"})
	want(t, err, ruleRequest)
}

// TestPlans checks the rules plan and daily.
func TestPlans(t *testing.T) {
	w := newWorld(t, 8, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	k.Keeper.options.Approved, k.Keeper.options.Daily = true, 2
	q := w.round("run", 0, 5)
	all := everybody(w, q)
	_, err := w.open(q, all)
	want(t, err, rulePlan)
	for _, approved := range []bool{false, true} {
		a, err := k.State(&v1.KeeperStateRequest{Plan: "plan"})
		if err != nil || a.Approved != approved {
			t.Errorf("the state says approved %v, want %v: %v", a.GetApproved(), approved, err)
		}
		if err := k.Approve("plan", "ours"); err != nil {
			t.Fatal(err)
		}
	}
	for round := range int64(2) {
		q = w.round("run", round, 5)
		if all = everybody(w, q); round < 2 {
			if _, err := w.open(q, all); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.open(q, all); err != nil {
		t.Errorf("a repeated request is not another round: %v", err)
	}
	q = w.round("run", 2, 5)
	_, err = w.open(q, everybody(w, q))
	want(t, err, ruleDaily)
	w.clock = w.clock.Add(24 * time.Hour)
	q = w.round("run", 2, 5)
	if _, err = w.open(q, everybody(w, q)); err != nil {
		t.Error(err)
	}
}

// TestCells checks that all cells are equally likely, even for members who joined before a cell
// existed.
func TestCells(t *testing.T) {
	rules := testRules()
	rules.Cell = 10
	const members = 100
	counts := map[int64]int{}
	early := map[int64]int{}
	for seed := range uint64(8) {
		w := newWorld(t, 100+seed, 1, rules)
		for i := range members {
			if _, err := w.join(string(rune('a'+i/26))+string(rune('a'+i%26)), true); err != nil {
				t.Fatal(err)
			}
		}
		for i, m := range w.keepers[0].Members() {
			counts[m.Cell]++
			if i < 20 {
				early[m.Cell]++
			}
		}
		w.keepers[0].close()
	}
	var chi, chiEarly float64
	for c := range int64(10) {
		d, e := float64(counts[c])-80, float64(early[c])-16
		chi, chiEarly = chi+d*d/80, chiEarly+e*e/16
	}
	if len(counts) != 10 || chi > 28 || chiEarly > 28 { // 9 degrees of freedom: p = 0.001
		t.Errorf("%d cells; chi-square %.1f, of early members %.1f: %v, %v", len(counts), chi, chiEarly, counts, early)
	}
}
