package engine

import (
	"strings"
	"testing"
	"time"

	"loadstar/nn/kernel"
)

func TestRun(t *testing.T) {
	k, err := kernel.Select("portable")
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range PeerModels() {
		t.Run(model, func(t *testing.T) { testRun(t, model, k) })
	}
	if _, err := Run("bose2025", []*kernel.Set{k}, nil, 1, time.Millisecond, nil); err == nil {
		t.Error("an unknown model was measured")
	}
	if _, err := StartPeer(t.Context(), "fekri2023"); err == nil || !strings.Contains(err.Error(), "only bose2023 and dense") {
		t.Errorf("a model that the peer does not have: %v", err)
	}
}

func testRun(t *testing.T, model string, k *kernel.Set) {
	calls := 0
	b, err := Run(model, []*kernel.Set{k}, nil, 2, time.Millisecond, func(done, total int, _ string) {
		if calls++; done != calls || total != 2 {
			t.Errorf("call %d reports %d of %d", calls, done, total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 2 || b.Peer != nil || b.Unfair || len(b.Kernels) != 1 {
		t.Fatalf("%d calls, %+v", calls, b)
	}
	got := b.Kernels[0]
	if got.Name != "portable" || !(got.TrainStepsPerS > 0 && got.Infer1PerS > got.TrainStepsPerS && got.PeakShare > 0 && got.PeakShare < 1) {
		t.Errorf("%+v", got)
	}
	if got.AllocsPerStep != 0 {
		t.Errorf("a step allocates %g times", got.AllocsPerStep)
	}
}

func TestMedianRates(t *testing.T) {
	got := medianRates([]rates{{1, 30, 5}, {3, 10, 5}, {2, 20, 8}})
	if want := (rates{2, 20, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := (rates{6, 8, 10}).over(rates{2, 4, 5}), (rates{3, 2, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
