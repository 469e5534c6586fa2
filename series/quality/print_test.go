package quality

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestGapBlock(t *testing.T) {
	for share, want := range map[float64]rune{-1: ' ', 0: '·', 0.01: '▁', 0.99: '▇', 1: '█'} {
		if got := gapBlock(share); got != want {
			t.Errorf("%g is drawn as %c, want %c", share, got, want)
		}
	}
}

func TestSpell(t *testing.T) {
	for got, want := range map[string]string{
		coverPercent(1): "100.0 %", coverPercent(0.99999): "99.9 %", coverPercent(0.5): "50.0 %",
		DescribeInterval(time.Hour): "1 h", DescribeInterval(15 * time.Minute): "15 min",
		spellSpan(30 * time.Minute): "30 min", spellSpan(36 * time.Hour): "36 h", spellSpan(72 * time.Hour): "3.0 days",
		padLabel("ab", 4): "ab  ", padLabel("abcdefgh", 5): "ab…gh",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestWrapped(t *testing.T) {
	var b strings.Builder
	p := &reportPage{out: &b}
	p.wrapped("lead: ", strings.Repeat("word ", 40))
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if n := utf8.RuneCountInString(line); n > pageWidth {
			t.Errorf("line %d has %d columns", i, n)
		}
		if i > 0 && !strings.HasPrefix(line, "      word") {
			t.Errorf("line %d is not indented: %q", i, line)
		}
	}
}
