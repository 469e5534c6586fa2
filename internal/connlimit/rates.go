package connlimit

import (
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Rates limits how often each of many callers may do something. It remembers a limited
// number of callers. A forgotten caller starts again.
type Rates struct {
	all       *lru.Cache[string, *rate.Limiter]
	perSecond rate.Limit
	burst     int
}

// NewRates returns limits of perSecond for each caller. A caller that was quiet may use up
// to burst at once. It remembers at most the given number of callers.
func NewRates(perSecond float64, burst, callers int) *Rates {
	all, err := lru.New[string, *rate.Limiter](callers)
	if err != nil {
		panic(err) // the number of callers is a constant that is not positive
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

// Spent reports whether a caller has reached its limit. It counts nothing.
func (r *Rates) Spent(who string) bool {
	l, ok := r.all.Peek(who)
	return ok && l.Tokens() < 1
}
