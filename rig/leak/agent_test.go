package leak

import (
	"math"
	"testing"

	"loadstar/fed/policy"
	"loadstar/nn/kernel"
)

// learned is the correlation above which an attack counts as a success. With a defence, the
// correlation with the true values must be at most 0.2.
const learned, nothing = 0.8, 0.2

// against carries out an attack on a host without defences, and on an agent whose policy contains
// only the rules that the test adds, so that the agent has no other defences.
func against(t *testing.T, days int, attack func(*Target) (float64, error), more func(*policy.Policy)) {
	t.Helper()
	if testing.Short() {
		t.Skip("trains hundreds of rounds")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Homes(1, days)
	if err != nil {
		t.Fatal(err)
	}
	allow := policy.None()
	more(&allow)
	without, err := attack(&Target{Data: d, Meters: []int{0}, Kernel: k, Open: Undefended(d, k)})
	if err != nil {
		t.Fatal(err)
	}
	with, err := attack(&Target{Data: d, Meters: []int{0}, Kernel: k, Open: Defended(d, k, allow)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("correlation with the truth: %.3f without the defence, %.3f with it", without, with)
	if without < learned {
		t.Errorf("without the defence the correlation is %.3f, so this attack proves nothing", without)
	}
	if math.Abs(with) > nothing {
		t.Errorf("with the defence the correlation is %.3f, at most %g is allowed", with, nothing)
	}
}

// TestLeakOfBatches checks the defence that an agent chooses its batches in secret.
func TestLeakOfBatches(t *testing.T) {
	against(t, 45, func(x *Target) (float64, error) { return Losses(t.Context(), x, Still(), 750) }, func(*policy.Policy) {})
}

// TestLeakOfFullPasses checks the defences that an agent rounds losses, and that its training
// data ends at whole blocks.
func TestLeakOfFullPasses(t *testing.T) {
	cuts := func(x *Target) (float64, error) { return Cuts(t.Context(), x, FullPass(), 700, 24, 1) }
	against(t, 45, cuts, func(*policy.Policy) {})
	against(t, 200, cuts, func(p *policy.Policy) { p.WholeBlocks = true })
}

// few requires as many examples as agents do by default.
func few(p *policy.Policy) { p.LeastExamples = 64 }

// TestLeakOfStride checks the defence that an agent reports no scores of only a few windows.
func TestLeakOfStride(t *testing.T) {
	against(t, 45, func(x *Target) (float64, error) {
		c, n, err := Strides(x, Still(), 24)
		if n == 0 {
			c = 0
		}
		return c, err
	}, few)
}

// TestLeakOfScores checks the defence that an agent rounds the scores of many windows.
func TestLeakOfScores(t *testing.T) {
	against(t, 45, func(x *Target) (float64, error) { return Scores(x, Still(), 160, 48) }, few)
}
