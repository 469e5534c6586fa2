package cli

import "testing"

func TestGrowth(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 50 << 20: 100, 192 << 20: 100, 256 << 20: 75, 384 << 20: 50, 480 << 20: 40, 2 << 30: 40} {
		if got := growth(live); got != want {
			t.Errorf("a live heap of %d MB may grow by %d %%, want %d", live>>20, got, want)
		}
	}
}
