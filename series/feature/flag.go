package feature

import "strings"

// Flag is an input that is 1 on a few days of the year and 0 on all others.
type Flag struct {
	Name  string
	Input int
}

// Flags returns the flags among the inputs with the given names: holidays and the end of the
// year. Hours, weekdays and weekends are not flags, because any two weeks contain all of them.
func Flags(names []string) (flags []Flag) {
	for i, name := range names {
		if kind, _, _ := strings.Cut(name, "."); kind == "holiday" || kind == "yearend" {
			flags = append(flags, Flag{Name: name, Input: i})
		}
	}
	return flags
}
