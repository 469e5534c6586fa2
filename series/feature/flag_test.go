package feature

import (
	"slices"
	"testing"
)

func TestFlags(t *testing.T) {
	names := Names(Task{StepsPerDay: 24, Horizon: 1, Targets: 1}, []string{"recent", "calendar", "holidays", "temperature"})
	var got []string
	for _, f := range Flags(names) {
		if names[f.Input] != f.Name {
			t.Errorf("%s is input %d, which is %s", f.Name, f.Input, names[f.Input])
		}
		got = append(got, f.Name)
	}
	if want := []string{"holiday", "holiday.day-before", "holiday.week-before", "yearend", "yearend.week-before"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if flags := Flags(Names(Task{StepsPerDay: 24, Horizon: 1, Targets: 1}, []string{"recent", "calendar"})); flags != nil {
		t.Errorf("%v without holidays", flags)
	}
}
