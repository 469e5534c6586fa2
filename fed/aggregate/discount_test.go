package aggregate

import (
	"math"
	"testing"
)

func TestDiscount(t *testing.T) {
	for _, c := range []struct {
		name      string
		discount  Discount
		staleness int
		want      float64
	}{
		{"constant", Constant(), 0, 1},
		{"constant", Constant(), 1000, 1},
		{"polynomial", Polynomial(.5), 0, 1},
		{"polynomial", Polynomial(.5), 3, .5}, // 1/sqrt(4)
		{"polynomial", Polynomial(2), 3, 1. / 16},
		{"polynomial", Polynomial(0), 3, 1},
		{"hinge", Hinge(10, 4), 0, 1},
		{"hinge", Hinge(10, 4), 4, 1},
		{"hinge", Hinge(10, 4), 5, 1. / 11},
		{"hinge", Hinge(.5, 4), 10, .25}, // 1/(3 + 1)
		{"hinge", Hinge(0, 0), 10, 1},
	} {
		if got := c.discount(c.staleness); !near(got, c.want) {
			t.Errorf("%s(%d) is %v, want %v", c.name, c.staleness, got, c.want)
		}
	}
}

func TestDiscountPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"constant of the future":   func() { Constant()(-1) },
		"polynomial of the future": func() { Polynomial(1)(-1) },
		"hinge of the future":      func() { Hinge(1, 1)(-1) },
		"rewarding polynomial":     func() { Polynomial(-1) },
		"NaN polynomial":           func() { Polynomial(math.NaN()) },
		"infinite hinge":           func() { Hinge(math.Inf(1), 1) },
		"hinge before 0":           func() { Hinge(1, -1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
