package synth

import "math"

// traits are the properties of a building. They are sampled once and do not change
// afterwards.
type traits struct {
	kind                *kind
	floor, wall, window float64
	floors, occupants   int
	scale               float64 // meter counts per kW; readings are multiples of 1/scale

	// These are in kW; cool and heat are in kW per kelvin.
	base, full, fans, yard, cool, heat float64

	coolFrom, heatFrom float64 // °C
	lag                float64 // share of the temperature difference that the shell loses in a quarter hour
	sun                float64 // kelvin per W/m2 of solar radiation
	gains              float64 // kelvin of internal heat gains when full
	limit              float64 // maximum cooling and heating, in kelvin

	occupancy [3][dayQuarter + 2]float64 // by day type, at the start of each quarter hour
	plant     [3][dayQuarter]float64     // share of the air conditioning that runs

	closes        rank
	recess        float64 // occupancy of a school in breaks
	recessShift   int     // delay of the breaks in days
	season        float64 // strength of seasonal effects
	dayNoise      float64 // noise of the daily occupancy
	jitter        float64 // noise of the start of a day, in quarter hours
	drift, memory float64 // random walk of the level from day to day
	odd           float64 // probability of an unusual day
	flutter       float64 // noise over hours
	cycling       float64 // noise of machines over minutes
}

// draw samples the properties of building i.
func (b *traits) draw(seed uint64, i int) {
	k := kindOf(seed, i)
	s := newStream(seed, forTraits, i)
	b.kind = k
	b.floor = k.floor * s.factor(k.spread)
	b.floors = max(1, int(math.Round(float64(k.floors)*s.factor(.2))))
	b.shell(&s)
	b.occupants = max(1, int(math.Round(b.floor*k.people/100*s.factor(.2))))

	kw := b.floor / 1000 * s.factor(.18)
	b.base = kw * k.base * s.factor(.3)
	b.full = kw * k.full * s.factor(.2)
	b.fans = kw * k.fans * s.factor(.3)
	b.yard = kw * k.yard * s.factor(.5)
	b.cool = kw * k.cool * s.factor(.35)
	if s.chance(k.electric) {
		b.heat = kw * k.heat * s.factor(.35)
	}
	b.coolFrom = k.balance + float64(1.8*s.bell())
	b.heatFrom = b.coolFrom - s.between(2, 6)
	b.lag = 0.25 / (5 * s.factor(.5))
	b.sun = .006 * s.factor(.4)
	b.gains = s.between(1, 3.5)
	b.limit = s.between(16, 24)
	b.schedule(&s)

	b.closes = k.closes
	if b.closes == minor && k.calendar == office && s.chance(.6) {
		b.closes = major // private offices are open on minor holidays
	}
	b.recess = s.between(.12, .5)
	b.recessShift = int(s.between(-8, 9))
	b.season = s.factor(.5)
	b.dayNoise = .04 * s.factor(.5)
	b.jitter = 1.2 * s.factor(.5)
	b.drift = .055 * s.factor(.5)
	b.memory = s.between(.9, .985)
	b.odd = .012 * s.factor(.7)
	small := math.Sqrt(math.Sqrt(1500 / b.floor)) // the noise of many machines averages out
	b.flutter = clamp(.05*small, .02, .09) * s.factor(.35)
	b.cycling = clamp(.045*small, .01, .1) * s.factor(.5)

	peak := b.base + b.full + b.fans + float64(12*b.cool)
	switch {
	case peak < 10:
		b.scale = 1000
	case peak < 100:
		b.scale = 100
	default:
		b.scale = 10
	}
}

// shell samples the areas of walls and windows, for a box with the building's floor area
// and number of floors.
func (b *traits) shell(s *stream) {
	footprint := b.floor / float64(b.floors)
	depth := math.Sqrt(footprint / s.between(1, 2.6))
	b.wall = 2 * (depth + footprint/depth) * b.kind.height * float64(b.floors) * s.between(.95, 1.15)
	b.window = b.wall * clamp(b.kind.glass*s.factor(.3), .002, .85)
}

// schedule samples the building's hours as a variation of its kind's hours. The building opens
// and closes up to two hours earlier or later, its occupancy differs at some hours, and its
// activity at weekends is higher or lower.
func (b *traits) schedule(s *stream) {
	open, shut := clamp(.8*s.bell(), -2, 2), clamp(.9*s.bell(), -2, 2)
	ends := [3]float64{1, s.factor(b.kind.weekends()), s.factor(b.kind.weekends())}
	lead := 2 + s.below(7)         // quarter hours of air conditioning before opening
	setback := s.between(.04, .45) // share of the air conditioning that runs at night
	if s.chance(.12) {
		setback = s.between(.6, 1) // badly configured controls
	}
	for w := range b.kind.hours {
		occupancy := b.occupancy[w][:]
		var t0, v0 float64
		q := 0
		for j, p := range b.kind.hours[w] {
			t := float64(4 * warp(p[0], open, shut))
			v := clamp(p[1]*(1+float64(.07*s.bell()))*ends[w], 0, 1.1)
			for ; j > 0 && q < len(occupancy) && float64(q) <= t; q++ {
				occupancy[q] = v0 + float64((v-v0)*((float64(q)-t0)/(t-t0)))
			}
			t0, v0 = t, v
		}
		occupancy[dayQuarter+1] = occupancy[dayQuarter]
		for q := range b.plant[w] {
			busy := 0.0
			for _, v := range occupancy[q:min(q+lead, dayQuarter)] {
				busy = max(busy, v)
			}
			on := clamp((busy-.14)*5, 0, 1)
			if b.kind.nights {
				on = 1
			}
			b.plant[w][q] = setback + float64((1-setback)*on)
		}
	}
}

// weekends returns the variation of weekend activity among buildings of this kind. Buildings
// that are closed at weekends need not be empty.
func (k *kind) weekends() float64 {
	if k.closes == minor || k.closes == major {
		return .35
	}
	return .08
}

// warp shifts an hour of the day: hours in the morning by open, hours in the evening by shut,
// and midnight not at all. It preserves the order of hours for shifts of up to two hours.
func warp(h, open, shut float64) float64 {
	part := clamp((h-9)/6, 0, 1)
	shift := float64(open*(1-part)) + float64(shut*part)
	return h + float64(shift*min(1, h/3, (24-h)/3))
}

// attendance returns the factors for the occupancy and the air conditioning of a day, which
// depend on the season.
func (b *traits) attendance(d *day) (people, air float64) {
	bump := func(height float64) (float64, float64) { return max(.3, 1+float64(height*b.season)), 1 }
	switch b.kind.calendar {
	case office:
		if d.yearDay >= 358 || d.yearDay <= 2 {
			return .55, .9
		}
	case school:
		y := d.yearDay - b.recessShift
		switch {
		case y >= 160 && y <= 230:
			return b.recess, .2 + b.recess
		case y >= 84 && y <= 90, d.yearDay >= 357, d.yearDay <= 4:
			return b.recess, .4
		}
	case trade:
		if d.yearDay >= 327 && d.yearDay <= 359 {
			return bump(.09)
		}
	case lodging:
		return bump(-.12 * cosine(float64(d.yearDay-20)/365.25))
	}
	return 1, 1
}

// carry is the state that a building carries from one day to the next.
type carry struct {
	level float64 // relative deviation of the load from its usual level
	runOn int     // remaining days with the air conditioning on at night
}

// today contains the sampled properties of one day of one building.
type today struct {
	occupancy *[dayQuarter + 2]float64
	plant     *[dayQuarter]float64
	people    float64 // factor by which occupancy is multiplied
	air       float64 // factor by which plant is multiplied
	rest      float64 // minimum share of the plant that runs
	late      float64 // delay of the occupancy in quarter hours
	level     float64 // factor by which the whole load is multiplied
}

// begin samples the random properties of a building's next day, such as occupancy, delay
// and load level. It updates the state that carries over to the following day.
func (b *traits) begin(s *stream, d *day, c *carry) today {
	w := d.week
	if b.closes != noHoliday && d.holiday >= b.closes {
		w = sunday
	}
	t := today{late: b.jitter * s.bell()}
	t.people, t.air = b.attendance(d)
	t.people *= clamp(1+float64(b.dayNoise*s.bell()), .6, 1.4)

	c.level = float64(b.memory*c.level) + float64(b.drift*math.Sqrt(1-float64(b.memory*b.memory))*s.bell())
	if s.chance(.3 / 365) { // occupants or machines change
		c.level += float64(2.5 * b.drift * s.bell())
	}
	t.level = clamp(1+c.level, .4, 1.8)
	if c.runOn > 0 {
		c.runOn--
		t.rest = .9
	} else if s.chance(.4 / 365) {
		c.runOn = 4 + s.below(40)
	}
	if s.chance(b.odd) {
		switch s.below(4) {
		case 0: // closed: snow, a burst pipe
			w = sunday
		case 1: // an event with more people
			t.people *= s.between(1.05, 1.35)
			t.late = s.between(0, 10)
		case 2: // a slow day
			t.people *= s.between(.5, .85)
		case 3: // an early start
			t.late = s.between(-10, 0)
		}
	}
	t.late = clamp(t.late, -12, 12)
	t.occupancy, t.plant = &b.occupancy[w], &b.plant[w]
	return t
}

// rooms is the thermal state of a building's rooms.
type rooms struct {
	shell        float64 // temperature of the shell in °C
	warm, chilly debt
}

// next advances the state by a quarter hour and returns the cooling and heating that the plant
// delivers, in kelvin. Use is the occupancy, and on is the share of the plant that is running.
func (r *rooms) next(b *traits, outside, sun, use, on float64) (cooling, heating float64) {
	r.shell += float64((outside + float64(b.sun*sun) - r.shell) * b.lag)
	inside := r.shell + float64(b.gains*use)
	cooling = r.warm.meet(min(hinge(inside-b.coolFrom, 3), b.limit), on)
	if b.heat > 0 {
		heating = r.chilly.meet(min(hinge(b.heatFrom-inside, 3), b.limit), on)
	}
	return cooling, heating
}

// debt is the cooling or heating that a stopped plant postpones to the morning, in kelvin
// hours.
type debt float64

// meet returns the output of the plant for the current need and part of the debt, and
// updates the debt.
func (d *debt) meet(need, on float64) float64 {
	met := float64((need + float64(.5**d)) * on)
	*d = max(0, debt(float64(.97**d))+debt((need-met)/4))
	return met
}

// fill writes the load of building i to load, without meter faults.
func (g *Generator) fill(b *traits, i int, load []float32) {
	days, noise := newStream(g.config.Seed, forDays, i), newStream(g.config.Seed, forNoise, i)
	c := carry{level: b.drift * days.bell()}
	var (
		rooms      = rooms{shell: g.climate.feel[0]}
		people     = 1.0
		level      = 1 + c.level
		slow, fast float64 // noise over hours and over minutes
		extra      float64 // kW of a machine that runs occasionally
		extraLeft  int     // quarter hours that the machine will still run
		sum        float64
		k, parts   int
	)
	const slowKeep, fastKeep = .93, .45
	slowPush := b.flutter * math.Sqrt(1-slowKeep*slowKeep)
	fastPush := b.cycling * math.Sqrt(1-fastKeep*fastKeep)
	for di := range g.days {
		d := &g.days[di]
		t := b.begin(&days, d, &c)
		if extraLeft == 0 && days.chance(1./60) {
			extra = (b.base + b.full) * days.between(.03, .18)
			extraLeft = 4 * (2 + days.below(70))
		}
		for q := d.first; q < d.end; q++ {
			// The factors of a new day take effect gradually over the day's first hours.
			people += float64((t.people - people) * .06)
			level += float64((t.level - level) * .06)

			slot := g.slot[q]
			use := float64(interpolate(t.occupancy[:], float64(slot)-t.late) * people)
			on := max(t.plant[slot], t.rest) * t.air
			outside := g.climate.feel[q]
			cooling, heating := rooms.next(b, outside, g.climate.solar[q], use, on)

			slow = float64(slowKeep*slow) + float64(slowPush*noise.bell())
			fast = float64(fastKeep*fast) + float64(fastPush*noise.bell())
			kw := b.base +
				float64(b.full*use*max(.2, 1+slow)) +
				float64(b.fans*on) +
				float64(b.yard*g.climate.dark[q]) +
				float64(b.cool*cooling*(1+float64(.012*(outside-25)))) +
				float64(b.heat*heating)
			kw = float64(kw * level * max(.3, 1+fast+float64(.3*slow)))
			if extraLeft > 0 {
				extraLeft--
				kw += extra
			}

			sum += kw
			if parts++; parts == g.per {
				load[k] = round(sum/float64(g.per), b.scale)
				k, parts, sum = k+1, 0, 0
			}
		}
	}
}

// interpolate returns the value of v at a fractional index, by linear interpolation.
func interpolate(v []float64, at float64) float64 {
	at = clamp(at, 0, dayQuarter)
	i := int(at)
	return v[i] + float64((at-float64(i))*(v[i+1]-v[i]))
}
