package keeper

import (
	"encoding/binary"
	"runtime"
	"strings"
	"sync"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

// releases contains the rules for the sums of masks.
type releases struct {
	*store
	membership *membership
	judging    *judging
}

// Release returns the sum of the masks of a round. The keeper answers only the first request
// for a round that the rules allow, and stores its record before it sends the answer. A
// repeated request gets the same bytes or is refused.
func (k *Keeper) Release(q *v1.KeeperReleaseRequest) (*v1.KeeperReleaseResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fresh(); err != nil {
		return nil, err
	}
	if err := k.checkRequest(q); err != nil {
		return nil, err
	}
	c := member.Context(k.current, q.Round)
	hash := requestHash(c, q)
	row, err := k.released(q.Round.Run, q.Round.Round)
	if err != nil {
		return nil, err
	}
	if row != nil && (k.options.on(ruleOnce) || string(row.Request) == string(hash)) {
		return k.again(q, c, hash, row)
	}
	keys, agents, err := k.releases.allow(q, c, k.options.seconds())
	if err != nil {
		return nil, err
	}
	chosen, err := k.releases.choose(q)
	if err != nil {
		return nil, err
	}
	masks := compute(q, c, keys, chosen)
	row = &releaseRow{Request: hash, Answer: sum(masks), At: k.options.seconds(), Agents: agents, Chosen: chosen}
	write := func() error { return k.releases.record(q.Round, row) }
	if k.options.on(ruleRecord) {
		if err := write(); err != nil {
			return nil, err
		}
	} else {
		k.deferred = write
	}
	return k.answer(q, masks, chosen), nil
}

func (k *Keeper) answer(q *v1.KeeperReleaseRequest, masks []byte, chosen []int64) *v1.KeeperReleaseResponse {
	a := &v1.KeeperReleaseResponse{Masks: masks, Chosen: chosen}
	a.Signature = member.Sign(k.identity, k.meta.Epoch, q, a)
	k.options.step("answer")
	return a
}

// checkRequest refuses malformed requests.
func (k *Keeper) checkRequest(q *v1.KeeperReleaseRequest) error {
	if err := k.checkRound(q.GetRound()); err != nil {
		return err
	}
	if len(q.Results) > member.MaxResults {
		return refuse(ruleRequest, "%d results, the maximum is %d", len(q.Results), member.MaxResults)
	}
	for i, r := range q.Results {
		if err := member.CheckResult(r); err != nil {
			return refuse(ruleRequest, "%s", err)
		}
		if i == 0 {
			continue
		}
		last := q.Results[i-1]
		switch order := strings.Compare(last.Agent, r.Agent); {
		case order == 0 && last.Part == r.Part && k.options.on(ruleTwice):
			return refuse(ruleTwice, "%s, part %d, is there twice", r.Agent, r.Part)
		case order > 0 || order == 0 && last.Part > r.Part:
			return refuse(ruleRequest, "the results are not ordered by agent and part")
		}
	}
	return nil
}

func requestHash(c *mask.Context, q *v1.KeeperReleaseRequest) []byte {
	bare := *c
	bare.Agent, bare.Part, bare.Clients = "", 0, 0
	b := bare.Append(nil)
	for _, r := range q.Results {
		b = append(b, runKey(r.Agent)...)
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, uint64(r.Part)), uint64(r.Clients))
		b = append(b, r.Nonce...)
	}
	return sum(b)
}

// again repeats the answer for a released round. It refuses if a member was removed, has
// another key, or was too young at the time, because the sum would then be different.
func (k *Keeper) again(q *v1.KeeperReleaseRequest, c *mask.Context, hash []byte, row *releaseRow) (*v1.KeeperReleaseResponse, error) {
	if string(row.Request) != string(hash) {
		return nil, refuse(ruleOnce, "round %d of run %s was released for another request", q.Round.Round+1, q.Round.Run)
	}
	keys, _, err := k.releases.keysOf(q, row.At)
	if err != nil {
		return nil, err
	}
	masks := compute(q, c, keys, row.Chosen)
	if string(sum(masks)) != string(row.Answer) {
		return nil, refuse(ruleOnce, "round %d of run %s was released with keys that have been replaced", q.Round.Round+1, q.Round.Run)
	}
	return k.answer(q, masks, row.Chosen), nil
}

// keysOf returns the keys of the results, and the number of distinct agents. at is the time of
// the release.
func (rs *releases) keysOf(q *v1.KeeperReleaseRequest, at int64) (keys []mask.Key, agents int64, err error) {
	keys = make([]mask.Key, len(q.Results))
	for i, r := range q.Results {
		if i > 0 && q.Results[i-1].Agent == r.Agent {
			keys[i] = keys[i-1]
			continue
		}
		agents++
		if keys[i], err = rs.membership.maskKey(r.Agent, q.Round.Day, at); err != nil {
			return nil, 0, err
		}
	}
	return keys, agents, nil
}

// allow applies the rules to a round that has not been released.
func (rs *releases) allow(q *v1.KeeperReleaseRequest, c *mask.Context, now int64) ([]mask.Key, int64, error) {
	newest, err := rs.newest(q.Round.Run)
	if err != nil {
		return nil, 0, err
	}
	if rs.options.on(ruleOnce) && q.Round.Round < newest {
		return nil, 0, refuse(ruleOnce, "round %d of run %s is over: round %d was released", q.Round.Round+1, q.Round.Run, newest+1)
	}
	if today := rs.options.today(); rs.options.Daily > 0 && rs.meta.Day == today && rs.meta.Count >= rs.options.Daily {
		return nil, 0, refuse(ruleDaily, "%d rounds were released today, the maximum is %d", rs.meta.Count, rs.options.Daily)
	}
	keys, agents, err := rs.keysOf(q, now)
	if err != nil {
		return nil, 0, err
	}
	if least := rs.least(q.Round); agents < least {
		return nil, 0, refuse(ruleLeast, "%d agents, the minimum is %d", agents, least)
	}
	if err := rs.quorum(q, now); err != nil {
		return nil, 0, err
	}
	if q.Round.Terms.Check == "norm" && rs.options.on(ruleCheck) && rs.judging.decides(q.Round) {
		err = rs.allJudged(q, c)
	}
	return keys, agents, err
}

// quorum refuses a sum that includes less than the quorum of a cell. Members that are too young
// do not count.
func (rs *releases) quorum(q *v1.KeeperReleaseRequest, now int64) error {
	if !rs.options.on(ruleQuorum) {
		return nil
	}
	has, of := map[int64]int64{}, map[int64]int64{}
	for i, r := range q.Results {
		if i == 0 || q.Results[i-1].Agent != r.Agent {
			has[rs.members[r.Agent].Cell]++
		}
	}
	for _, m := range rs.members {
		if !m.Revoked && m.Serial != 0 && m.Since+rs.current.Rules.Age <= now {
			of[m.Cell]++
		}
	}
	share := max(rs.current.Rules.Quorum, q.Round.Terms.Quorum)
	if q.Round.Terms.Robust == "nearest" && !rs.judging.decides(q.Round) {
		share /= 2 // another keeper has chosen these results, which may be less than three quarters of a cell
	}
	for cell, n := range has {
		if n*1000 < share*of[cell] {
			return refuse(ruleQuorum, "%d of the %d members of cell %d, the minimum is %d", n, of[cell], cell, (share*of[cell]+999)/1000)
		}
	}
	return nil
}

// allJudged refuses results that were not accepted by Check.
func (rs *releases) allJudged(q *v1.KeeperReleaseRequest, c *mask.Context) error {
	return rs.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(checksBucket)
		for _, r := range q.Results {
			var row checkRow
			if found, err := boltfile.Get(b, checkKey(q.Round, r), &row); err != nil {
				return err
			} else if !found || !row.Accepted || string(row.Request) != string(resultHash(c, r)) {
				return refuse(ruleCheck, "the norm of %s, part %d, was not accepted", r.Agent, r.Part)
			}
		}
		return nil
	})
}

// choose returns, in ascending order, the positions of the three quarters of the results whose
// sketches are nearest to the median sketch. It returns nil if the plan uses all results, or if
// another keeper decides.
func (rs *releases) choose(q *v1.KeeperReleaseRequest) (chosen []int64, err error) {
	if q.Round.Terms.Robust != "nearest" || !rs.judging.decides(q.Round) {
		return nil, nil
	}
	// Sizes and tallies do not depend on the direction of an update.
	length := mask.Sketch * mask.Updates(member.Blocks(q.Round.Limits))
	rows := make([][]float64, len(q.Results))
	for i, r := range q.Results {
		row, err := rs.judged(q.Round, r)
		if err != nil {
			return nil, err
		}
		if row == nil || len(row.Sketch) < length {
			return nil, refuse(ruleCheck, "the keeper has no products of %s, part %d", r.Agent, r.Part)
		}
		for _, x := range row.Sketch[:length] {
			rows[i] = append(rows[i], float64(x)/float64(r.Clients))
		}
	}
	for _, i := range mask.Nearest(rows) {
		chosen = append(chosen, int64(i))
	}
	agents := map[string]bool{}
	for _, i := range chosen {
		agents[q.Results[i].Agent] = true
	}
	if least := rs.least(q.Round); int64(len(agents)) < least {
		return nil, refuse(ruleLeast, "%d agents among the chosen results, the minimum is %d", len(agents), least)
	}
	return chosen, nil
}

// least returns the minimum number of agents in a sum.
func (rs *releases) least(q *v1.MaskedRound) int64 {
	if !rs.options.on(ruleLeast) {
		return 0
	}
	return max(rs.current.Rules.Least, q.Terms.Least)
}

// record makes a release durable. It first announces the release in keys.db, and then stores
// the release itself.
func (rs *releases) record(q *v1.MaskedRound, row *releaseRow) error {
	last := lastRow{Releases: rs.meta.Releases + 1, Run: q.Run, Round: q.Round, Row: *row}
	rs.options.step("before announcement")
	if err := rs.ring.announce(last); err != nil {
		return err
	}
	return rs.update("release", func(c *change) error { return c.release(&last) })
}

// release stores a release, and removes the judged results of its run up to its round.
func (c *change) release(last *lastRow) error {
	if day := mask.Day(c.at); c.meta.Day != day {
		c.meta.Day, c.meta.Count = day, 0
	}
	c.meta.Count++
	c.meta.Releases = last.Releases
	if err := boltfile.Put(c.tx.Bucket(releasesBucket), roundKey(last.Run, last.Round), &last.Row); err != nil {
		return err
	}
	checks := c.tx.Bucket(checksBucket)
	prefix, end := runKey(last.Run), string(roundKey(last.Run, last.Round+1))
	cursor := checks.Cursor()
	for key, _ := cursor.Seek(prefix); key != nil && string(key) < end; key, _ = cursor.Seek(prefix) {
		if err := cursor.Delete(); err != nil {
			return err
		}
		c.checks--
	}
	return c.log("release", "run %s, round %d: %d agents, request %x", last.Run, last.Round+1, last.Row.Agents, last.Row.Request)
}

// compute adds up the masks of a request's results, or of the chosen ones. It is a pure function.
func compute(q *v1.KeeperReleaseRequest, context *mask.Context, keys []mask.Key, chosen []int64) []byte {
	places := chosen
	if len(places) == 0 {
		places = make([]int64, len(q.Results))
		for i := range places {
			places[i] = int64(i)
		}
	}
	workers := min(runtime.GOMAXPROCS(0), len(places))
	sums := make([][]uint64, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			v, c := make([]uint64, q.Round.Length), *context
			for at := w; at < len(places); at += workers {
				r := q.Results[places[at]]
				member.Of(&c, r)
				seed := keys[places[at]].Seed(&c, mask.Nonce(r.Nonce))
				seed.Add(v)
			}
			sums[w] = v
		})
	}
	wg.Wait()
	masks := make([]byte, 8*q.Round.Length)
	for i := range q.Round.Length {
		var x uint64
		for _, v := range sums {
			x += v[i]
		}
		binary.LittleEndian.PutUint64(masks[8*i:], x)
	}
	return masks
}
