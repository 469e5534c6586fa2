package synth

import (
	"math"
	"slices"
)

// stockTraits are the properties of a building of a Stock.
type stockTraits struct {
	traits
	coolCapacity, heatCapacity float64 // kW of heat
	built                      float64 // year

	use   [3][dayQuarter]float64 // occupancy by day type
	runs  [3][dayQuarter]bool    // whether the air conditioning is scheduled to run
	stage float64                // kW of one stage of the cooling plant
	night float64                // at night, the plant starts after rooms have drifted by these kelvin hours
	batch float64                // kW of a machine that works in batches: a kiln, a dishwasher, a water heater
	often float64                // probability that the machine starts in a quarter hour of full occupancy
	start float64                // share of the plant that starts or stops in a quarter hour
	noise float64                // deviation of a quarter hour because controls overshoot, as a share of the load
}

// draw samples the properties of building i.
func (b *stockTraits) draw(st *state, seed uint64, i int, p plot) {
	k := &kinds[slices.IndexFunc(kinds[:], func(k kind) bool { return k.name == p.kind })]
	s := newStream(seed, forTraits, i+1000)
	b.kind = k
	b.floor = k.floor * exp(clamp(k.spread*(p.order+float64(.2*s.bell())), -3.9, 3.9))
	switch {
	case k.floor > 10000:
		b.floor *= st.large
	case k.floor < 1000:
		b.floor *= st.small
	}
	b.floors = max(1, int(math.Round(float64(k.floors)*s.factor(.3))))
	b.shell(&s)
	b.wall *= s.factor(st.shallow)
	b.window = b.wall * clamp(k.glass*s.factor(st.shallow), .002, .85)
	b.built = math.Round(s.between(1925, 2016))
	old := float64((1995 - b.built) * .003) // older buildings use more for the same area

	kw := b.floor / 1000 * s.factor(.1) * (1 + old)
	b.base = kw * k.base * s.factor(.15)
	b.full = kw * k.full * s.factor(.12)
	b.fans = kw * k.fans * s.factor(.2)
	b.yard = kw * k.yard * s.factor(.3)
	b.cool = kw * k.cool * s.factor(.2) * st.cooling
	if s.chance(k.electric * st.electric) {
		b.heat = kw * k.heat * s.factor(.2)
	}
	b.coolFrom = k.balance + float64(1.2*s.bell())
	b.heatFrom = b.coolFrom - s.between(3, 6)
	b.lag = 0.25 / (st.lag * s.factor(.4))
	b.sun = .009 * s.factor(.3)
	b.gains = s.between(1.5, 4)
	b.limit = s.between(14, 18)
	b.closes = k.closes
	b.recess = s.between(.15, .4)
	b.season = 1
	b.coolCapacity = float64(b.cool*b.limit*3.2) * s.factor(.08)
	b.heatCapacity = float64(b.floor*.09) * s.factor(.15)
	if s.chance(st.noHeat) {
		b.heatCapacity = 0
	}

	b.schedule(&s)
	b.steps(&s)
	small := math.Sqrt(math.Sqrt(1500 / b.floor))
	b.stage = float64(b.cool*b.limit) * clamp(.06*small, .04, .1)
	b.night = s.between(6, 20)
	b.batch = b.full * clamp(.12*small, .06, .15)
	b.often = s.between(.04, .1)
	b.noise = .048 * s.factor(.25)
	b.scale = 1000
}

// steps samples the schedules. In some buildings, the occupancy has one value for each hour and
// the plant starts at once, so that load changes in steps. The hours of these buildings can
// begin at a quarter past, half past or a quarter to. In the other buildings, values are
// interpolated between hours, and the plant starts over several quarter hours. EnergyPlus
// supports both.
func (b *stockTraits) steps(s *stream) {
	shift := 0
	if s.chance(.4) {
		shift = 1 + s.below(3)
	}
	gradual := s.chance(.6)
	b.start = 1
	if gradual {
		b.start = 1 / float64(2+s.below(4))
	}
	lead := 2 + s.below(5)
	for w := range b.use {
		for q := range b.use[w] {
			if gradual {
				b.use[w][q] = b.occupancy[w][q]
				continue
			}
			from := min(max((q-shift+4)/4*4-4+shift, 0), dayQuarter-4)
			b.use[w][q] = b.occupancy[w][from+2]
		}
		for q := range b.runs[w] {
			b.runs[w][q] = b.kind.nights || slices.Max(b.use[w][q:min(q+lead, dayQuarter)]) > .2
		}
	}
}

// air is the state of the air conditioning of a building.
type air struct {
	rooms
	drift float64 // kelvin hours since the plant stopped
	left  int     // quarter hours that the plant still runs at night
	owed  float64 // kW of cooling still to deliver, because only whole stages run

	running float64 // share of the plant that runs
}

// next advances the state by a quarter hour and returns the load in kW. At night, the plant
// runs for half an hour whenever the rooms have drifted too far, as in EnergyPlus' night cycle.
// By day, the plant's cooling changes in whole stages.
func (a *air) next(b *stockTraits, outside, sun, use float64, on bool, share float64) float64 {
	a.shell += float64((outside + float64(b.sun*sun) - a.shell) * b.lag)
	inside := a.shell + float64(b.gains*use)
	hot, cold := min(hinge(inside-b.coolFrom, 2), b.limit), 0.0
	if b.heat > 0 {
		cold = min(hinge(b.heatFrom-inside, 2), b.limit)
	}
	if on {
		a.drift, a.left = 0, 0
	} else {
		a.drift += float64((hinge(hot-9, 2) + hinge(cold-9, 2)) / 4)
		if a.left--; a.left < 0 && a.drift > b.night {
			a.left, a.drift = 1, 0
		}
	}
	switch {
	case on:
		a.running = min(1, a.running+b.start)
	case a.left >= 0:
		a.running = .6
	default:
		a.running = max(0, a.running-b.start)
	}
	running := a.running
	a.left = max(a.left, -1)
	cooling := float64(a.warm.limited(hot, running, b.limit)) * (1 + float64(.012*(outside-25)))
	heating := a.chilly.limited(cold, running, b.limit)
	a.owed += float64(b.cool * cooling)
	stages := math.Floor(a.owed/b.stage + .5)
	given := float64(max(stages, 0) * b.stage)
	a.owed -= given
	full := clamp(cooling/b.limit, 0, 1)
	return float64((given+float64(b.heat*heating))*share) + float64(b.fans*running*(.5+float64(.5*full))*share)
}

// limited is like meet, for a plant whose output is limited. The limit is in kelvin.
func (d *debt) limited(need, on, limit float64) float64 {
	met := float64(min(need+float64(.1**d), limit) * on)
	*d = max(0, debt(float64(.93**d))+debt((need-met)/4))
	return met
}

// fill writes the load of building i.
func (s *Stock) fill(b *stockTraits, i int, load []float32) {
	noise := newStream(s.seed, forNoise, i+1000)
	a := air{rooms: rooms{shell: s.air.feel[0]}, left: -1}
	batch := 0
	typical := b.base + float64(.5*b.full)
	for di := range s.days {
		d := &s.days[di]
		w := d.week
		if b.closes != noHoliday && d.holiday >= b.closes {
			w = sunday
		}
		people, share := b.attendance(d)
		for q := d.first; q < min(d.end, len(load)); q++ {
			slot := s.slot[q]
			use := float64(b.use[w][slot] * people)
			kw := b.base + float64(b.full*use) + float64(b.yard*s.air.dark[q])
			kw += a.next(b, s.air.feel[q], s.air.solar[q], use, b.runs[w][slot], share)
			if batch--; batch < 0 && noise.chance(b.often*use) {
				batch = 1 + noise.below(4)
			}
			if batch > 0 {
				kw += b.batch
			}
			kw += float64(b.noise * (float64(.4*kw) + float64(.6*typical)) * noise.bell())
			load[q] = round(kw, b.scale)
		}
	}
}
