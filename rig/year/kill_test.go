package year

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"

	"loadstar/agent/live"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// These variables turn the test program into an agent that runs through some weeks as fast
// as it can, and continues where it was killed.
const (
	childDir   = "LOADSTAR_YEAR_DIR"
	childModel = "LOADSTAR_YEAR_MODEL"
	childEnd   = "LOADSTAR_YEAR_END"
)

// kin is an agent without its other components. Its folder is inside the folder that contains
// data.prepared.
type kin struct {
	data    *series.Dataset
	store   *store.Store
	service *live.Service
	now     int64
	closers []func() error
	// stop, if not nil, is called where the agent may be stopped.
	stop func() error
}

func openKin(dir, model string) (*kin, error) {
	x := &kin{now: start}
	d, closer, err := series.OpenPrepared(filepath.Join(dir, "..", "data.prepared"))
	if err != nil {
		return nil, err
	}
	x.data = d
	if x.store, err = store.Open(filepath.Join(dir, "readings.db"), store.Config{Interval: d.Interval, Clock: d.Clock}); err != nil {
		return nil, err
	}
	var meters []series.Meter
	var names []string
	for i := range d.Len() {
		m := d.Meter(i)
		m.Load = m.Load[:(start-m.Start)/3600]
		m.Static = nil
		meters, names = append(meters, m), append(names, m.ID)
	}
	past, err := series.NewDataset(series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Weather: d.Weather}, meters)
	if err != nil {
		return nil, err
	}
	if _, err := x.store.Import("history", past, time.Unix(start, 0)); err != nil {
		return nil, err
	}
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	x.service, err = live.Open(live.Config{
		Dir: dir, Site: series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country}, Clients: names, H: 48,
		Groups: map[string][]string{"all": names}, Store: x.store, Model: model, Kernel: k, Now: func() time.Time { return time.Unix(x.now, 0) },
	})
	x.closers = []func() error{x.service.Close, x.store.Close, closer.Close}
	return x, err
}

func (x *kin) close() (err error) {
	for _, f := range x.closers {
		err = errors.Join(err, f())
	}
	return err
}

// last returns the newest cutoff.
func (x *kin) last() (last int64) {
	for _, c := range x.service.Clients() {
		if c.Forecast != nil {
			last = max(last, c.Forecast.Cutoff)
		}
	}
	return last
}

func (x *kin) mayStop() error {
	if x.stop == nil {
		return nil
	}
	return x.stop()
}

func (x *kin) work(t int64) error {
	x.now = t + 120
	for {
		if did, err := x.service.Work(context.Background()); err != nil || !did {
			return err
		}
		if err := x.mayStop(); err != nil {
			return err
		}
	}
}

// live runs the agent until the given end.
func (x *kin) live(end int64) error {
	last := x.last()
	if last > 0 {
		if err := x.work(last); err != nil { // continue unfinished work
			return err
		}
	}
	for t := max(last+3600, start); t <= end; t += 3600 {
		var readings []store.Reading
		for i := range x.data.Len() {
			m := x.data.Meter(i)
			readings = append(readings, store.Reading{Client: m.ID, Time: t - 3600, KW: m.Load[(t-3600-m.Start)/3600]})
		}
		if _, err := x.store.Put(time.Unix(t+60, 0), readings, nil); err != nil {
			return err
		}
		if x.now = t + 120; !x.service.Tick() {
			return fmt.Errorf("no forecast at %d: %w", t, x.service.Ready())
		}
		if err := x.mayStop(); err != nil {
			return err
		}
		if err := x.work(t); err != nil {
			return err
		}
	}
	return nil
}

func child() error {
	end, err := strconv.ParseInt(os.Getenv(childEnd), 10, 64)
	if err != nil {
		return err
	}
	x, err := openKin(os.Getenv(childDir), os.Getenv(childModel))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return errors.Join(x.live(end), x.close())
}

// threeClients returns a folder with the readings of three clients, and a model for them.
func threeClients(t *testing.T) (dir, model string) {
	t.Helper()
	d, model := fixture(t)
	d, err := d.First(3)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := series.WritePrepared(filepath.Join(dir, "data.prepared"), d); err != nil {
		t.Fatal(err)
	}
	return dir, model
}

// TestKill kills an agent at random moments. It continues, and its last forecasts and
// scores must equal those of an agent that was not killed.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	dir, model := threeClients(t)
	end := start + int64(testkit.Pick(10, 60))*86400
	run := func(name string, kill time.Duration) (killed bool) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+filepath.Join(dir, name), childModel+"="+model, childEnd+"="+strconv.FormatInt(end, 10))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 6)); err == nil && kill > 0 { // the agent is ready
			time.Sleep(kill)
			cmd.Process.Kill() // fails only if the process has ended
		}
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() >= 0 {
			t.Fatalf("%v\n%s", err, said.String())
		}
		return cmd.ProcessState.ExitCode() < 0
	}
	run("whole", 0)
	kills, random := 0, rand.New(rand.NewPCG(1, 2))
	for most := testkit.Pick(12, 200); kills < most && run("killed", time.Duration(1+random.IntN(600))*time.Millisecond); {
		kills++
	}
	run("killed", 0)
	a, b := final(t, filepath.Join(dir, "whole"), model), final(t, filepath.Join(dir, "killed"), model)
	t.Logf("%d kills", kills)
	for name, x := range a {
		if y := b[name]; !reflect.DeepEqual(x, y) {
			t.Errorf("%s: after %d kills the outcome is\n%+v\n%s\nwant\n%+v\n%s", name, kills, y.Issued, y.scores, x.Issued, x.scores)
		}
		if x.Cutoff != end || len(x.Rows) != 48 {
			t.Errorf("%s: cutoff %d, %d rows", name, x.Cutoff, len(x.Rows))
		}
	}
	if len(a) != 4 || kills < 2 {
		t.Errorf("%d forecasts, %d kills", len(a), kills)
	}
}

// errStopped ends the life of an agent in TestStop.
var errStopped = errors.New("stopped")

// TestStop stops an agent after each issue and after each piece of background work. Closing
// stores nothing, so stopping there has the same effect as a kill, but is deterministic.
func TestStop(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model and runs it for days of virtual time")
	}
	dir, model := threeClients(t)
	end := start + 10*86400
	run := func(name string, stop func(x *kin) bool) (stopped bool) {
		x, err := openKin(filepath.Join(dir, name), model)
		if err != nil {
			t.Fatal(err)
		}
		x.stop = func() error {
			if stop(x) {
				return errStopped
			}
			return nil
		}
		err = x.live(end)
		if err := errors.Join(err, x.close()); err != nil && !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		return errors.Is(err, errStopped)
	}
	run("whole", func(*kin) bool { return false })
	stops := 0
	for run("stopped", func(*kin) bool { return true }) {
		stops++
	}
	a, b := final(t, filepath.Join(dir, "whole"), model), final(t, filepath.Join(dir, "stopped"), model)
	t.Logf("%d stops", stops)
	for name, x := range a {
		if y := b[name]; !reflect.DeepEqual(x, y) {
			t.Errorf("%s: after %d stops the outcome is\n%+v\n%s\nwant\n%+v\n%s", name, stops, y.Issued, y.scores, x.Issued, x.scores)
		}
	}
	if stops < 48 {
		t.Errorf("%d stops, want one in each of the first 48 hours", stops)
	}
}

// outcome is an agent's final data about a client.
type outcome struct {
	*live.Issued
	scores string // as text, because NaN is not equal to itself
}

// final returns the newest forecasts and the scores in a folder.
func final(t *testing.T, dir, model string) map[string]outcome {
	t.Helper()
	x, err := openKin(dir, model)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	out := map[string]outcome{}
	for _, c := range x.service.Clients() {
		f, err := x.service.Forecast(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		if c.Members != nil {
			f.Weight = 0 // a group has no weight, and NaN is not equal to itself
		}
		scores, err := x.service.Scores(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		out[c.Name] = outcome{f, fmt.Sprintf("%+v, drift %t, wants a round %t", scores, c.Drift, c.WantsRound)}
	}
	return out
}
