package aggregate

import (
	"errors"
	"slices"
	"testing"

	"loadstar/fed"
)

// TestFedSIM merges the updates of two clients, with a server loss whose gradient is w^3,
// theta = 1, delta = 1/2 and beta = 1/4.
//
// Client a trains to 3: v = 1 - 3 = -2,
//
//	d  = ((3 - 1)^3 - (3 + 1)^3) / 1 = 8 - 64 = -56
//	w~ = 3 - 1/4 (-2 + 1/2·56) = 3 - 6.5 = -3.5
//
// Client b trains to 2: v = -1,
//
//	d  = (1.5^3 - 2.5^3) / 1 = 3.375 - 15.625 = -12.25
//	w~ = 2 - 1/4 (-1 + 6.125) = .71875
//
// The mean is (-3.5 + .71875)/2 = -1.390625; the displacement is that minus 1.
//
// First order: 3 + 1/4·2 = 3.5 and 2 + 1/4 = 2.25, mean 2.875.
//
// Server gradient, first order: v = 27 and 8: 3 - 27/4 = -3.75 and 2 - 2 = 0, mean -1.875.
//
// Server gradient: v = 27, d = 16.5^3 - (-10.5)^3 = 4492.125 + 1157.625 = 5649.75,
// w~ = 3 - 1/4 (27 - 2824.875) = 702.46875; v = 8, d = 6^3 - (-2)^3 = 224,
// w~ = 2 - 1/4 (8 - 112) = 28; mean 365.234375.
func TestFedSIM(t *testing.T) {
	shared := []float32{1}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 2), update("b", 100, shared, 1)}, false, 1)
	for _, c := range []struct {
		sim  FedSIM
		want float64
	}{
		{FedSIM{Delta: .5, Beta: .25}, -2.390625},
		{FedSIM{Delta: .5, Beta: .25, FirstOrder: true}, 1.875},
		{FedSIM{Delta: .5, Beta: .25, FirstOrder: true, ServerGradient: true}, -2.875},
		{FedSIM{Delta: .5, Beta: .25, ServerGradient: true}, 364.234375},
		{FedSIM{Delta: .5, Beta: 0}, 1.5}, // the mean of the clients' updates
	} {
		wantDisplacement(t, c.sim, m, c.want)
	}

	// A stale update: client a received 2 and trained to 4, so v = -2. First order: 4 +
	// 1/4·2 = 4.5.
	m.Updates = []fed.Received{update("a", 1, []float32{2}, 2)}
	wantDisplacement(t, FedSIM{Beta: .25, FirstOrder: true}, m, 3.5)
}

// TestFedSIMDecay lowers beta from 1/4 to 0 in four merges. With v = -2, the server's
// steps are 1/2, 3/8, 1/4, 1/8 and then 0. Each is added to the client's own change of 2.
func TestFedSIMDecay(t *testing.T) {
	shared := []float32{1}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 2)}, false, 1)
	for round, want := range []float64{.5, .375, .25, .125, 0, 0} {
		m.Round = round
		wantDisplacement(t, FedSIM{Beta: .25, FirstOrder: true, Rounds: 4}, m, 2+want)
		wantDisplacement(t, FedSIM{Beta: .25, FirstOrder: true}, m, 2.5)
	}
}

// server implements fed.ServerData and records the points at which gradients are computed.
type server struct {
	at  [][]float32
	err error
}

func (s *server) Gradient(g, w []float32) error {
	s.at = append(s.at, slices.Clone(w))
	clear(g)
	return s.err
}

func TestFedSIMServer(t *testing.T) {
	shared := []float32{1}
	m := newMerge(t, shared, 7, []fed.Received{update("a", 1, shared, 2)}, false, 1)
	for _, c := range []struct {
		sim   FedSIM
		needs bool
		want  [][]float32
	}{
		{FedSIM{Delta: .5}, true, [][]float32{{2}, {4}}},
		{FedSIM{Delta: .5, ServerGradient: true}, true, [][]float32{{3}, {3}, {3}}}, // v is 0 here
		{FedSIM{FirstOrder: true, ServerGradient: true}, true, [][]float32{{3}}},
		{FedSIM{FirstOrder: true}, false, nil},
	} {
		s := &server{}
		m.Server = s
		if err := c.sim.Aggregate(make([]float64, 1), m); err != nil {
			t.Error(err)
		}
		if !slices.EqualFunc(s.at, c.want, slices.Equal) {
			t.Errorf("%+v: gradients at %v, want %v", c.sim, s.at, c.want)
		}
		if got := c.sim.Needs(); got != (fed.Needs{EachUpdate: true, ServerData: c.needs}) {
			t.Errorf("%+v needs %+v", c.sim, got)
		}
		s.err = errors.New("no data")
		if err := c.sim.Aggregate(make([]float64, 1), m); c.needs != errors.Is(err, s.err) {
			t.Errorf("%+v: %v", c.sim, err)
		}
	}
	for _, sim := range []FedSIM{{}, {Delta: -1}, {Delta: 1, Beta: -1}} {
		if err := sim.Aggregate(make([]float64, 1), m); err == nil {
			t.Errorf("%+v: no error", sim)
		}
	}
	m.Server = explosive{}
	if err := (FedSIM{Delta: 1, Beta: 1}).Aggregate(make([]float64, 1), m); err == nil {
		t.Error("no error for a gradient that is not finite")
	}
}

type explosive struct{}

func (explosive) Gradient(g, _ []float32) error {
	for i := range g {
		g[i] = 1 / (g[i] - g[i])
	}
	return nil
}
