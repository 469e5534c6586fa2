package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/agent/release"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
	"loadstar/server/ledger"
)

// homes returns meters with weather. The readings are so large that they cannot be mistaken
// for weights.
func homes(t *testing.T, n int) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{Seed: 5, Meters: n, Start: time.Date(2018, 2, 20, 0, 0, 0, 0, time.UTC), Days: 30, Zone: "UTC"})
	testkit.Must(t, err)
	all := make([]series.Meter, n)
	for i := range all {
		load := make([]float32, g.Len())
		b := g.Building(i, load)
		for k := range load {
			load[k] = 4000 + 977.31*load[k] // watts, with digits before and after the decimal point
		}
		all[i] = series.Meter{ID: fmt.Sprintf("home-%d", i), Start: g.Time(0).Unix(), Load: load, Static: []float32{float32(b.FloorArea), float32(b.WallArea), float32(b.WindowArea)}}
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "homes", Generated: true, Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"floor_area", "wall_area", "window_area"},
		Weather: series.Weather{Start: g.Time(0).Unix(), Names: []string{"temperature", "wind"}, Columns: [][]float32{g.Weather().Temperature, g.Weather().Wind}},
	}, all)
	testkit.Must(t, err)
	return d
}

func firstHomes(t *testing.T, d *series.Dataset, from, to int) *series.Dataset {
	t.Helper()
	var some []series.Meter
	for i := from; i < to; i++ {
		some = append(some, d.Meter(i))
	}
	made, err := series.NewDataset(*d, some)
	testkit.Must(t, err)
	return made
}

// host runs a real agent that calls the server at the given address, until stop is called.
func (st *station) host(name, address string, d *series.Dataset) (stop func()) {
	st.Helper()
	return st.hostFor(name, address, d, nil)
}

// hostFor runs an agent with a receiver of releases, which may be nil. An agent that has joined
// before continues with its identity.
func (st *station) hostFor(name, address string, d *series.Dataset, releases release.Host) (stop func()) {
	st.Helper()
	dir := filepath.Join(st.Dir, name)
	i, err := identity.Open(dir)
	if err != nil {
		i, err = identity.Join(st.Context(), dir, st.url, st.token(1), name)
	}
	testkit.Must(st, err)
	k, err := kernel.Default()
	testkit.Must(st, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Config{
			Dir: dir, Server: address, Client: i.HTTPClient(), Dataset: d, Kernel: k, Releases: releases,
			Log: slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			st.Errorf("agent %s: %v", name, err)
		}
		i.HTTPClient().CloseIdleConnections()
	})
	st.Cleanup(stop)
	return stop
}

// finished waits until a run finishes.
func (st *station) finished(run string) ledger.Run {
	st.Helper()
	var r ledger.Run
	for end := time.Now().Add(patient); !r.State.Ended(); time.Sleep(20 * time.Millisecond) {
		var err error
		r, err = st.ledger.Run(st.Context(), run)
		testkit.Must(st, err)
		if time.Now().After(end) {
			st.Fatalf("the run is %s, in round %d", r.State, r.Round)
		}
	}
	if r.State != ledger.Finished {
		st.Fatalf("the run %s: %s", r.State, r.Reason)
	}
	return r
}
