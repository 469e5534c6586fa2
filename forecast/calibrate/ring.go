package calibrate

// ring contains a value for each of the newest days.
type ring[T any] struct {
	days []T
	// The ring contains values for at most len(days) days up to newest. If begun is false,
	// newest has no meaning.
	newest int
	begun  bool
}

// at returns the value of a day, which must not be before the newest one. It calls reset with
// each value whose day is too old, so that the value's memory can be reused.
func (r *ring[T]) at(day int, reset func(*T)) *T {
	n := len(r.days)
	if !r.begun {
		r.newest, r.begun = day, true
		reset(&r.days[day%n])
	}
	for d := max(r.newest+1, day-n+1); d <= day; d++ {
		reset(&r.days[d%n])
	}
	r.newest = max(r.newest, day)
	return &r.days[day%n]
}

// each calls f with each value in the ring whose day is at most until, and later than until
// minus the ring's length.
func (r *ring[T]) each(until int, f func(day int, v *T)) {
	if !r.begun {
		return
	}
	n := len(r.days)
	for d := max(until-n+1, r.newest-n+1, 0); d <= min(until, r.newest); d++ {
		f(d, &r.days[d%n])
	}
}
