package localtrain

import (
	"math"

	"loadstar/fed"
)

// Query divides a client's examples into a support set, for the look-ahead step of a
// meta-learner, and a query set, for the gradient after it (song2021, appendix B: 80 % and
// 20 %). With the zero value, both steps sample from all examples.
//
// The division is random and the same in every round (Turn.Division). If the examples were
// divided by time, the gradient after the look-ahead step would cover only one season.
type Query struct {
	// Share is the share of the examples in the query set; it is below 1.
	Share float64
}

// Support returns the number of examples in the support set of a client with n examples. Both
// sets have at least one example; a client's only example is in both.
func (q Query) Support(n int) int {
	if q.Share == 0 || n < 2 {
		return n
	}
	return n - min(max(int(math.Round(q.Share*float64(n))), 1), n-1)
}

// pairs produces the support and query batches of a turn.
type pairs struct {
	batches batches
	support int // number of examples in the support set, if the examples are divided

	order []int // the support set, followed by the query set

	drawn, first, second []int
	begun                bool
}

// begin starts the turn of a client with n examples. If the examples are divided, the batches
// of Work are sampled from the support set.
func (p *pairs) begin(w Work, q Query, n int, t *fed.Turn) error {
	p.support, p.begun = q.Support(n), false
	if err := p.batches.begin(w, p.support, t); err != nil {
		return err
	}
	p.order = p.order[:0]
	if p.support < n {
		p.order = fill(p.order, 0, n)
		t.Division.Shuffle(n, func(i, j int) { p.order[i], p.order[j] = p.order[j], p.order[i] })
	}
	return nil
}

// next returns the batches of the next step, valid until the next call, or nil after the
// last step.
func (p *pairs) next() (support, query []int) {
	batch := p.batches.next()
	if batch == nil {
		return nil, nil
	}
	again := p.begun && p.batches.work.ResampleRound // the batches of the previous step
	p.begun = true
	if len(p.order) == 0 {
		if !again {
			p.drawn = p.batches.draw(p.drawn)
		}
		return p.drawn, batch
	}
	if !again {
		p.first = pick(p.first, p.order[:p.support], batch)
		p.drawn = p.batches.drawFrom(p.drawn, len(p.order)-p.support)
		p.second = pick(p.second, p.order[p.support:], p.drawn)
	}
	return p.first, p.second
}

// pick overwrites dst with the elements of from at the given positions.
func pick(dst, from, at []int) []int {
	dst = dst[:0]
	for _, i := range at {
		dst = append(dst, from[i])
	}
	return dst
}
