package keeper

import (
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

// tolerance is the highest accepted estimate of a norm, as a multiple of the limit. For an
// update at its limit, the estimate is higher in only one of ten thousand cases.
const tolerance = 1.5

// unlimited is the highest accepted norm where there is no limit. The norms of all sums that a
// plan allows are below it, and the norm of a vector that still contains a mask is above it.
const unlimited = 1 << 60

// maxChecks limits the number of judged results that are stored.
const maxChecks = 500_000

// judging judges results by their norms.
type judging struct {
	*store
	membership *membership
}

// Check estimates the norms of results from products with the run's random vectors. A result is
// judged once: the same products get the same answer, and other products are refused, so a
// server learns one bit about each result.
func (k *Keeper) Check(q *v1.KeeperCheckRequest) (*v1.KeeperCheckResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fresh(); err != nil {
		return nil, err
	}
	if err := k.checkRound(q.GetRound()); err != nil {
		return nil, err
	}
	if q.Round.Terms.Check != "norm" {
		return nil, refuse(ruleCheck, "the plan has check %s", q.Round.Terms.Check)
	}
	if len(q.Results) > member.MaxChecked {
		return nil, refuse(ruleRequest, "%d results, the maximum is %d", len(q.Results), member.MaxChecked)
	}
	newest, err := k.newest(q.Round.Run)
	if err != nil {
		return nil, err
	}
	if q.Round.Round <= newest {
		return nil, refuse(ruleOnce, "round %d of run %s was released", newest+1, q.Round.Run)
	}
	directions := k.directions(q.Round.Run)
	if !k.judging.decides(q.Round) {
		if len(q.Directions) != len(directions) {
			return nil, refuse(ruleRequest, "another keeper decides, but its directions are missing")
		}
		directions = mask.Seed(q.Directions)
	} else if len(q.Directions) != 0 {
		return nil, refuse(ruleRequest, "this keeper decides, so it uses its own directions")
	}
	rows, err := k.judging.judge(q, &directions)
	if err != nil {
		return nil, err
	}
	a := &v1.KeeperCheckResponse{}
	for _, r := range rows {
		if a.Products = append(a.Products, r.reduced...); k.judging.decides(q.Round) {
			a.Accepted = append(a.Accepted, r.Accepted)
		}
	}
	a.Signature = member.Sign(k.identity, k.meta.Epoch, q, a)
	return a, nil
}

// decides reports whether this keeper sees the products of updates. The other keepers see only
// products that are still masked.
func (j *judging) decides(q *v1.MaskedRound) bool {
	return string(q.Terms.Keepers[len(q.Terms.Keepers)-1]) == string(j.pin[:])
}

// judge returns the rows of a request's results, and stores the new rows.
func (j *judging) judge(q *v1.KeeperCheckRequest, directions *mask.Seed) ([]*checkRow, error) {
	rows, added := make([]*checkRow, len(q.Results)), map[int]bool{}
	seen := map[string]bool{}
	c := member.Context(j.current, q.Round)
	for i, x := range q.Results {
		if err := member.CheckResult(x.GetResult()); err != nil {
			return nil, refuse(ruleRequest, "%s", err)
		}
		if len(x.Products) != mask.Sketch*len(q.Round.Limits) {
			return nil, refuse(ruleRequest, "%d products, want %d", len(x.Products), mask.Sketch*len(q.Round.Limits))
		}
		at := string(checkKey(q.Round, x.Result))
		if seen[at] {
			return nil, refuse(ruleTwice, "%s, part %d, is there twice", x.Result.Agent, x.Result.Part)
		}
		seen[at] = true
		key, err := j.membership.maskKey(x.Result.Agent, q.Round.Day, j.options.seconds())
		if err != nil {
			return nil, err
		}
		row, err := j.judged(q.Round, x.Result)
		if err != nil {
			return nil, err
		}
		fresh := &checkRow{Request: resultHash(c, x.Result), Products: productsHash(x.Products, directions), Day: q.Round.Day}
		switch {
		case row == nil:
			j.estimate(fresh, q.Round, x, c, &key, directions)
			row, added[i] = fresh, true
		case string(row.Request) != string(fresh.Request) || string(row.Products) != string(fresh.Products):
			return nil, refuse(ruleCheck, "%s, part %d, was judged with other products in round %d", x.Result.Agent, x.Result.Part, q.Round.Round+1)
		case !j.decides(q.Round): // the answer is not stored, because it can be computed again
			j.estimate(row, q.Round, x, c, &key, directions)
		}
		rows[i] = row
	}
	if len(added) == 0 {
		return rows, nil
	}
	if j.checks+len(added) > maxChecks {
		return nil, refuse(ruleCheck, "%d judged results wait for their rounds, the maximum is %d", j.checks, maxChecks)
	}
	return rows, j.update("check", func(c *change) error {
		for i := range added {
			if err := boltfile.Put(c.tx.Bucket(checksBucket), checkKey(q.Round, q.Results[i].Result), rows[i]); err != nil {
				return err
			}
		}
		c.checks += len(added)
		return nil
	})
}

// estimate subtracts the products of the keeper's mask from those of the masked vector. If this
// keeper decides, it also decides whether the result is accepted.
func (j *judging) estimate(row *checkRow, q *v1.MaskedRound, x *v1.CheckedResult, c *mask.Context, key *mask.Key, directions *mask.Seed) {
	member.Of(c, x.Result)
	seed := key.Seed(c, mask.Nonce(x.Result.Nonce))
	v := make([]uint64, q.Length)
	seed.Add(v)
	decides, products := j.decides(q), x.Products
	row.Accepted, row.reduced = decides, nil
	for _, b := range q.Limits {
		p := directions.Products(v[:b.Length])
		for i := range p {
			p[i] = products[i] - p[i]
		}
		v, products = v[b.Length:], products[mask.Sketch:]
		if !decides {
			row.reduced = append(row.reduced, p[:]...)
			continue
		}
		limit := float64(unlimited)
		if b.Limit > 0 {
			limit = tolerance * float64(b.Limit) * float64(x.Result.Clients)
		}
		if j.options.on(ruleCheck) && !(mask.Norm(&p) <= limit) {
			row.Accepted = false
		}
		if q.Terms.Robust == "nearest" {
			for _, d := range p {
				row.Sketch = append(row.Sketch, int64(d))
			}
		}
	}
	if !row.Accepted {
		row.Sketch = nil
	}
}

// judged returns the stored judgement of a result, or nil.
func (s *store) judged(q *v1.MaskedRound, r *v1.MaskedResult) (row *checkRow, err error) {
	row = new(checkRow)
	found := false
	err = s.db.View(func(tx *bolt.Tx) (err error) {
		found, err = boltfile.Get(tx.Bucket(checksBucket), checkKey(q, r), row)
		return err
	})
	if !found {
		row = nil
	}
	return row, err
}

// resultHash is the hash of a result and everything on which the result's mask depends.
func resultHash(c *mask.Context, r *v1.MaskedResult) []byte {
	member.Of(c, r)
	return sum(c.Append(nil), r.Nonce)
}

func productsHash(products []uint64, directions *mask.Seed) []byte {
	b := directions[:len(directions):len(directions)]
	for _, p := range products {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return sum(b)
}

// checkRound refuses rounds that are malformed, more than a day before or after today, of a
// plan without approval, or not for this keeper.
func (k *Keeper) checkRound(q *v1.MaskedRound) error {
	if err := member.CheckRound(q); err != nil {
		return refuse(ruleRequest, "%s", err)
	}
	if err := k.checkFleet(q.Fleet); err != nil {
		return err
	}
	mine := false
	for _, p := range q.Terms.Keepers {
		mine = mine || string(p) == string(k.pin[:])
	}
	if !mine {
		return refuse(ruleKeepers, "keeper %s is not one of the run's", k.pin)
	}
	if today := k.options.today(); q.Day < today-1 || q.Day > today+1 {
		return refuse(ruleDay, "the round is of day %d, and today is %d: keys are kept for two days", q.Day, today)
	}
	return k.approved(q.Plan)
}
