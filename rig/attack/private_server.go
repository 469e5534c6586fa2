package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// askTwice succeeds if the keeper releases a round to a second request that differs from the
// first, even after it was killed, or if the keeper releases an earlier round. A copy of the
// keeper from before the release must answer the second request, and the difference between the
// two sums must be the update of one agent. Otherwise the attack proves nothing.
func askTwice(ctx context.Context, f *Fleet) (Result, error) {
	v := f.lyingVault(ctx, "keeper", 8)
	forgetful := v.copied(ctx, "copy")
	q := v.round("run", 1, "none")
	all := v.hideAll(v.members, q)
	sum, err := v.open(ctx, q, all)
	if err != nil || !slices.Equal(sum, plainSum(all)) {
		return Result{}, errors.Join(errors.New("an honest round is not opened"), err)
	}
	fewer, err := forgetful.open(ctx, q, all[1:])
	if err != nil || !slices.Equal(minus(sum, fewer), all[0].x) {
		return Result{}, errors.Join(errors.New("a keeper that forgets its release does not reveal an update, so this attack proves nothing"), err)
	}
	changed := func(change func(q *v1.MaskedRound)) *v1.MaskedRound {
		c := proto.CloneOf(q)
		change(c)
		return c
	}
	second := append([]*hidden{v.hide(v.members[0], q, 0)}, all[1:]...)
	attempts := []attempt{
		{"without one agent", "once", v.opens(ctx, q, all[1:])},
		{"with another result of one agent", "once", v.opens(ctx, q, second)},
		{"with one result more", "once", v.opens(ctx, q, append(slices.Clone(all), v.hide(v.members[0], q, 1)))},
		{"with other weights", "once", v.opens(ctx, changed(func(q *v1.MaskedRound) { q.Weights = "others" }), all)},
		{"with other limits", "once", v.opens(ctx, changed(func(q *v1.MaskedRound) { q.Clip.Norm = 2 }), all)},
		{"with the key of the day before", "once", v.opens(ctx, changed(func(q *v1.MaskedRound) { q.Day-- }), all)},
		{"of an earlier round", "once", v.opens(ctx, v.round("run", 0, "none"), all[1:])},
	}
	for range 2 {
		if broken, err := refusals(attempts); broken != nil || err != nil {
			return orSucceeded(broken), err
		}
		if repeated, err := v.open(ctx, q, all); err != nil || !slices.Equal(repeated, sum) {
			return Result{}, errors.Join(errors.New("the same request gets a different answer"), err)
		}
		v.again(ctx)
	}
	return repelled("%d second requests are refused by rule once, also after a kill; a copy of the keeper without the release answers one, and gives an update away", len(attempts)), nil
}

// orSucceeded returns the result of an attempt that was not refused, if there is one.
func orSucceeded(broken *Result) Result {
	if broken == nil {
		return Result{}
	}
	return *broken
}

// askForFewer succeeds if the keeper releases a sum of fewer agents than its rules require, a sum
// of parts of a cell, or a sum that contains one result twice. A keeper with the lowest possible
// rules must reveal an update.
func askForFewer(ctx context.Context, f *Fleet) (Result, error) {
	low := f.lyingVault(ctx, "low", 6, "least: 2", "quorum: 0")
	q := low.round("run", 0, "none")
	pair := low.hideAll(low.members[:2], q) // the second member belongs to the server
	if sum, err := low.open(ctx, q, pair); err != nil || !slices.Equal(minus(sum, pair[1].x), pair[0].x) {
		return Result{}, errors.Join(errors.New("a keeper with low rules does not reveal an update, so this attack proves nothing"), err)
	}
	v := f.lyingVault(ctx, "keeper", 12, "cell: 6")
	part := v.partOfCell(ctx)
	q = v.round("run", 0, "none")
	all := v.hideAll(v.members, q)
	var parts []*hidden
	for _, in := range v.members[:keptLeast-1] {
		parts = append(parts, v.hide(in, q, 0), v.hide(in, q, 1))
	}
	attempts := []attempt{
		{"four agents", "least", v.opens(ctx, q, all[:keptLeast-1])},
		{"four agents with two results each", "least", v.opens(ctx, q, parts)},
		{"one result six times", "twice", v.opens(ctx, q, []*hidden{all[0], all[0], all[0], all[0], all[0], all[0]})},
		{"a part of a cell", "quorum", v.opens(ctx, q, v.hideAll(part, q))},
	}
	if broken, err := refusals(attempts); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	if sum, err := v.open(ctx, q, all); err != nil || !slices.Equal(sum, plainSum(all)) {
		return Result{}, errors.Join(errors.New("the sum of all is not opened"), err)
	}
	return repelled("%d requests are refused by rules %s; a keeper with least 2 and no quorum gives an update away", len(attempts), rulesOf(attempts)), nil
}

// partOfCell returns all members outside the largest cell, and one member of that cell fewer
// than its quorum.
func (v *vault) partOfCell(ctx context.Context) (part []*insider) {
	a := must(v.State(ctx, &v1.KeeperStateRequest{Fleet: keptFleet}))
	cell, size := map[string]int64{}, map[int64]int64{}
	for _, m := range a.Members {
		cell[m.Agent] = m.Cell
		size[m.Cell]++
	}
	var largest int64
	for c, n := range size {
		if n > size[largest] {
			largest = c
		}
	}
	left := int64(keptQuorum*float64(size[largest])+0.999) - 1
	for _, in := range v.members {
		if cell[in.name] != largest {
			part = append(part, in)
		} else if left > 0 {
			part, left = append(part, in), left-1
		}
	}
	if len(part) < keptLeast {
		check(fmt.Errorf("the cells have %v members: too few for this attack", size))
	}
	return part
}

// askForOthers succeeds if the keeper releases a sum with a result that it has not judged, or with
// a result of somebody who is not a member. It also succeeds if the keeper releases a round of
// eight agents, and then the same round with a ninth agent in place of one of them. A copy of the
// keeper must answer the last request, and the difference from the first sum must be the ninth
// agent's update.
func askForOthers(ctx context.Context, f *Fleet) (Result, error) {
	v := f.lyingVault(ctx, "keeper", 10)
	gone := v.members[9]
	must(v.people(ctx, "member", "revoke", gone.name))
	own, victim := v.members[0], v.members[8]
	forgetful := v.copied(ctx, "copy")
	plain := v.round("plain", 0, "none")
	nine := v.hideAll(v.members[:9], plain)
	q := v.round("run", 0, "norm")
	all := v.hideAll(v.members[:9], q)
	if accepted, err := v.judge(ctx, q, all[:8]); err != nil || slices.Contains(accepted, false) {
		return Result{}, errors.Join(fmt.Errorf("honest results are judged %v", accepted), err)
	}
	with := func(h *hidden) []*hidden { return append([]*hidden{h}, all[1:8]...) }
	more := *all[0]
	more.MaskedResult = proto.CloneOf(more.MaskedResult)
	more.Clients++
	probed := *all[1]
	probed.y = slices.Clone(probed.y)
	probed.y[0]++
	nobody := &insider{"nobody", mask.NewKey(), mask.Day(time.Now())}
	attempts := []attempt{
		{"a result that was not judged", "check", v.opens(ctx, q, append(slices.Clone(all[:8]), all[8]))},
		{"another result than the judged one", "check", v.opens(ctx, q, with(v.hide(own, q, 0)))},
		{"a judged result with another number of clients", "check", v.opens(ctx, q, with(&more))},
		{"a result of a stranger", "member", v.opens(ctx, q, append(slices.Clone(all[:8]), v.hide(nobody, q, 0)))},
		{"a result of a revoked member", "member", v.opens(ctx, q, append(slices.Clone(all[:8]), v.hide(gone, q, 0)))},
		{"a second judgement of a changed result", "check", func() error { _, err := v.judge(ctx, q, []*hidden{&probed}); return err }},
	}
	if broken, err := refusals(attempts); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	first := must(v.open(ctx, plain, nine[:8]))
	second, err := forgetful.open(ctx, plain, nine[1:])
	if got := minus(second, first); err != nil || !slices.Equal(minus(got, minus(nine[8].x, nine[0].x)), make([]uint64, len(got))) {
		return Result{}, errors.Join(errors.New("a keeper that forgets its release does not reveal the update of "+victim.name+", so this attack proves nothing"), err)
	}
	if _, err := v.open(ctx, q, all[:8]); err != nil {
		return Result{}, fmt.Errorf("a judged round is not opened: %w", err)
	}
	late := []attempt{
		{"the same round with one agent in the place of another", "once", v.opens(ctx, plain, nine[1:])},
		{"a judgement after the release", "once", func() error { _, err := v.judge(ctx, q, all[8:]); return err }},
	}
	if broken, err := refusals(late); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	attempts = append(attempts, late...)
	return repelled("%d requests are refused by rules %s; a copy of the keeper without the release answers one, and gives an update away", len(attempts), rulesOf(attempts)), nil
}

// askInSecondRun succeeds if results that were masked for one run are opened in another run, or
// pass the check there. In their own run, they must be opened.
func askInSecondRun(ctx context.Context, f *Fleet) (Result, error) {
	v := f.lyingVault(ctx, "keeper", 8)
	for _, check := range []string{"none", "norm"} {
		q := v.round("first-"+check, 0, check)
		all := v.hideAll(v.members, q)
		other := v.round("second-"+check, 0, check)
		if check == "norm" {
			accepted := must(v.judge(ctx, other, all))
			if slices.Contains(accepted, true) {
				return succeeded("%v of the results pass the check of another run", accepted), nil
			}
			if broken, err := refusals([]attempt{{"results of another run", "check", v.opens(ctx, other, all)}}); broken != nil || err != nil {
				return orSucceeded(broken), err
			}
			if accepted, err := v.judge(ctx, q, all); err != nil || slices.Contains(accepted, false) {
				return Result{}, errors.Join(fmt.Errorf("in their own run the results are judged %v", accepted), err)
			}
		} else if sum, err := v.open(ctx, other, all); err != nil {
			return Result{}, err
		} else if n := short(sum); n > 0 {
			return succeeded("%d of %d numbers are not noise", n, len(sum)), nil
		}
		if sum, err := v.open(ctx, q, all); err != nil || !slices.Equal(sum, plainSum(all)) || short(sum) != len(sum) {
			return Result{}, errors.Join(errors.New("in their own run the results are not opened"), err)
		}
	}
	return repelled("in a second run the same results give noise, and with check: norm they are refused by rule check; in their own run they are opened"), nil
}

// short counts the numbers that are as small as the numbers of hide. Only one in a billion
// random numbers is so small.
func short(sum []uint64) (n int) {
	const bits = 30
	for _, x := range sum {
		if y := int64(x); -1<<bits < y && y < 1<<bits {
			n++
		}
	}
	return n
}

// inventMembers succeeds if a keeper accepts a member without an invitation or with a used one,
// accepts another key for a member, or opens a sum with members that enrolled on the same day. A
// keeper that accepts everyone whom the server names must reveal the update of the only real
// member.
func inventMembers(ctx context.Context, f *Fleet) (Result, error) {
	credulous := f.lyingVault(ctx, "credulous", 1, "members: server")
	today := mask.Day(time.Now())
	all := slices.Clone(credulous.members)
	for i := range keptLeast {
		in := &insider{fmt.Sprint("invented-", i), mask.NewKey(), today}
		check(credulous.enrol(ctx, in, member.Code{}))
		all = append(all, in)
	}
	q := credulous.round("run", 0, "none")
	h := credulous.hideAll(all, q)
	if sum, err := credulous.open(ctx, q, h); err != nil || !slices.Equal(minus(sum, plainSum(h[1:])), h[0].x) {
		return Result{}, errors.Join(errors.New("a keeper without invitations does not reveal an update, so this attack proves nothing"), err)
	}
	v := f.lyingVault(ctx, "keeper", 2)
	victim := v.members[0]
	used := v.invite(ctx, 1)
	check(v.enrol(ctx, &insider{"user", mask.NewKey(), today}, used))
	free := v.invite(ctx, 1)
	seal := must(member.Seal(v.says, victim.name, &victim.key, victim.day, free))
	invented := func(code member.Code) func() error {
		return func() error { return v.enrol(ctx, &insider{"invented", mask.NewKey(), today}, code) }
	}
	attempts := []attempt{
		{"a member without an invitation", "invitation", invented(member.Code{})},
		{"a member with a guessed invitation", "invitation", invented(member.NewCode())},
		{"a member with a used invitation", "invitation", invented(used)},
		{"another key for a member", "member", func() error { return v.enrol(ctx, &insider{victim.name, mask.NewKey(), today}, free) }},
		{"a member's seal under another name", "member", func() error { return v.pass(ctx, "invented", seal) }},
	}
	if broken, err := refusals(attempts); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	young := f.lyingVault(ctx, "young", 8, "age: 24h")
	q = young.round("run", 0, "none")
	late := []attempt{{"members of the same day", "age", young.opens(ctx, q, young.hideAll(young.members, q))}}
	if broken, err := refusals(late); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	attempts = append(attempts, late...)
	return repelled("%d attempts are refused by rules %s; a keeper with members: server gives an update away", len(attempts), rulesOf(attempts)), nil
}
