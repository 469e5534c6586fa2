package feature

// The inputs of the groups in this file are known in advance, because they do not depend on the
// load.

// indicators clears n inputs of all examples and returns the position of the first one.
func (b *block) indicators(n int) int {
	at := b.row * b.down
	for range n {
		clear(b.next())
	}
	return at
}

func (b *block) calendar() {
	hours, weekdays := b.indicators(24), b.indicators(7)
	at := b.skip(6)
	clock := b.frame.clock
	for e := range b.n {
		when := &clock.steps[b.first+int(b.target[e])]
		b.x[hours+int(when.hour)*b.down+e] = 1
		b.x[weekdays+int(when.weekday)*b.down+e] = 1
		w := &clock.waves[when.slot]
		b.write(at, e, w[0], w[1], w[2], w[3], flag(when.flags, weekend), flag(when.flags, weekendDayBefore))
	}
}

func (b *block) holidays() {
	at := b.skip(5)
	for e := range b.n {
		flags := b.frame.clock.steps[b.first+int(b.target[e])].flags
		b.write(at, e, flag(flags, isHoliday), flag(flags, holidayDayBefore), flag(flags, holidayWeekBefore),
			flag(flags, yearEnd), flag(flags, yearEndWeekBefore))
	}
}

func flag(flags, which uint8) float32 {
	if flags&which != 0 {
		return 1
	}
	return 0
}

// weatherStep returns the step on the frame's clock whose weather example e uses.
func (b *block) weatherStep(e int) int {
	if b.frame.task.next() {
		return b.first + int(b.origin[e])
	}
	return b.first + int(b.target[e])
}

// mild is the scaled temperature beyond which heating and cooling are assumed to begin.
const mild = 0.5

func (b *block) temperature() {
	clock, m := b.frame.clock, b.columns.scaling.Temperature
	w, hour := &clock.temperature, max(clock.perDay/24, 1)
	at := b.indicators(6)
	for e := range b.n {
		step := b.weatherStep(e)
		now, ok := m.at(w.values, step)
		if !ok {
			continue
		}
		var hourChange, dayChange, deviation float32 // 0 if the other value is unknown
		if before, ok := m.at(w.values, step-hour); ok {
			hourChange = limit(now - before)
		}
		if before, ok := m.at(w.values, step-clock.perDay); ok {
			dayChange = limit(now - before)
		}
		if mean, ok := m.at(w.means, step); ok {
			deviation = limit(now - mean)
		}
		b.write(at, e, limit(now), hourChange, dayChange, limit(max(now-mild, 0)), limit(max(-mild-now, 0)), deviation)
	}
	if !b.frame.task.next() {
		row := b.next()
		for e := range row {
			v, _ := m.at(w.values, b.first+int(b.origin[e])) // 0 if unknown
			row[e] = limit(v)
		}
	}
}

func (b *block) wind() {
	row := b.next()
	for e := range row {
		v, _ := b.columns.scaling.Wind.at(b.frame.clock.wind.values, b.weatherStep(e)) // 0 if unknown
		row[e] = limit(v)
	}
}

func (b *block) lead() {
	t := b.frame.task
	if t.Targets == 1 {
		return
	}
	at, days := b.indicators(t.Targets), b.next()
	for e := range days {
		number := int(b.number[e])
		b.x[at+number*b.down+e] = 1
		days[e] = float32(t.Horizon+number) / float32(t.StepsPerDay)
	}
}
