package testkit

import (
	"slices"
	"strings"
	"testing"

	"loadstar/internal/finding"
)

// Finding returns the finding of a check. The test fails if there is none.
func Finding(t testing.TB, all finding.List, check string) finding.Finding {
	t.Helper()
	i := slices.IndexFunc(all, func(f finding.Finding) bool { return f.Check == check })
	if i < 0 {
		t.Fatalf("no finding of %s in %v", check, all)
	}
	return all[i]
}

// WantFinding compares the finding of a check with a level and a text. A finding that is not OK
// must contain advice.
func WantFinding(t testing.TB, all finding.List, check string, level finding.Level, text string) {
	t.Helper()
	if f := Finding(t, all, check); f.Level != level || !strings.Contains(f.Text, text) || (f.Do == "") != (level == finding.OK) {
		t.Errorf("%+v, want %s %q", f, level, text)
	}
}
