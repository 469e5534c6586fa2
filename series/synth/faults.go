package synth

import "math"

// fail adds meter faults to the readings of building i.
func (g *Generator) fail(b *traits, i int, load []float32) {
	f := g.config.Faults
	if f.sum() == 0 {
		return
	}
	s := newStream(g.config.Seed, forFaults, i)
	// The mean of stream.factor(.8) is (sinh(a)/a)^4 with a = .8*sqrt(3)/2.
	badness := min(s.factor(.8)/1.3716, .8/f.sum())
	hours := g.config.Interval.Hours()

	// A spell is a run of faulty intervals. Outside other spells, a spell of one kind starts in
	// an interval with a probability of that fault's share divided by the mean length of its
	// spells.
	const outageMean, stuckMean = 2 + 46/4., 2 + 22/3. // hours
	chance := badness / (1 - float64(badness*(f.Outage+f.Stuck)))
	gap := float64(chance * f.Gap)
	spike := gap + float64(chance*f.Spike)
	outage := spike + float64(chance*f.Outage*(hours/outageMean))
	stuck := outage + float64(chance*f.Stuck*(hours/stuckMean))

	nan := float32(math.NaN())
	last := load[0]
	for k := 0; k < len(load); k++ {
		switch u := s.uniform(); {
		case u < gap:
			load[k] = nan
		case u < spike:
			load[k] = round(float64(load[k])*s.between(3, 10), b.scale)
		case u < outage:
			u := s.uniform()
			for n := spell(2+float64(46*u*u*u), hours); n > 0 && k < len(load); n-- {
				load[k] = nan
				k++
			}
			k--
		case u < stuck:
			u := s.uniform()
			for n := spell(2+float64(22*u*u), hours); n > 0 && k < len(load); n-- {
				load[k] = last
				k++
			}
			k--
		default:
			last = load[k]
		}
	}
}

func spell(length, interval float64) int { return int(length/interval + 0.5) }
