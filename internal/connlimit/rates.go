package connlimit

import (
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Rates limits how often each of many callers may do something. It remembers a limited number
// of callers. A forgotten caller starts again with its full burst.
type Rates struct {
	all       *lru.Cache[string, *rate.Limiter]
	perSecond rate.Limit
	burst     int
}

// NewRates returns limits of perSecond for each caller. A caller that has been inactive may act
// up to burst times at once. The argument callers is the maximum number of callers that are
// remembered.
func NewRates(perSecond float64, burst, callers int) *Rates {
	all, err := lru.New[string, *rate.Limiter](callers)
	if err != nil {
		panic(err) // callers is a constant that must be positive
	}
	return &Rates{all, rate.Limit(perSecond), burst}
}

func (r *Rates) of(who string) *rate.Limiter {
	if l, ok := r.all.Get(who); ok {
		return l
	}
	l := rate.NewLimiter(r.perSecond, r.burst)
	if other, had, _ := r.all.PeekOrAdd(who, l); had {
		return other
	}
	return l
}

// Allow reports whether a caller may act once more, and counts the action.
func (r *Rates) Allow(who string) bool { return r.of(who).Allow() }

// Spent reports whether a caller has reached its limit. It does not count as an action.
func (r *Rates) Spent(who string) bool {
	l, ok := r.all.Peek(who)
	return ok && l.Tokens() < 1
}
