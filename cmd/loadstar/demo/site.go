package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/agent"
	"loadstar/agent/api"
	"loadstar/agent/identity"
	"loadstar/agent/live"
	"loadstar/agent/readings"
	"loadstar/agent/release"
	"loadstar/fed/policy"
	"loadstar/fed/serve"
	"loadstar/internal/mtls"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// clock is the time at the buildings. It stands still except when the demo moves it.
type clock struct{ unix atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(c.unix.Load(), 0) }

// set moves the clock to shortly after the end of a step.
func (c *clock) set(cutoff int64) { c.unix.Store(cutoff + int64(delay/time.Second) + 4) }

// delay is how long after the end of a step an agent waits for readings.
const delay = 2 * time.Minute

// relaxed lists the changes to the agents' default policy. The buildings have only 100
// days of readings and may be few. They need no protection, because they are
// generated.
var relaxed = []string{"least_client_examples=500", "whole_blocks=false", "least_cohort=2", "least_merge=2", "least_fleet=2"}

// ahead is the number of steps that agents forecast.
const ahead = 24

// site is an agent of the demo with its own folder, readings, forecasts, training, HTTP
// interface and page. It can be stopped at any time and restarted.
type site struct {
	name, dir string
	version   string // of the program
	clients   []string
	stage     *stage
	clock     *clock
	kernel    *kernel.Set
	log       *slog.Logger
	shift     int64 // days from the clock's time to the real one
	wire      *wire
	identity  *identity.Identity
	each      func([]*live.Issued) // is told about all forecasts
	listener  net.Listener         // of its page, until it starts
	address   string               // of its page

	store   *store.Store
	service *live.Service
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  chan<- error
}

// join gives the agent its certificate.
func (s *site) join(ctx context.Context, server, token string) (err error) {
	if s.identity, err = identity.Join(ctx, s.dir, server, token, s.name); err == nil {
		s.wire.base = s.identity.HTTPClient().Transport
	}
	return err
}

// fill imports the readings before the clock's time.
func (s *site) fill(past *series.Dataset) error {
	st, err := s.openStore()
	if err != nil {
		return err
	}
	bare := series.Dataset{Name: past.Name, Interval: past.Interval, Clock: past.Clock} // weather has its own times of issue
	var meters []series.Meter
	for i := range past.Len() {
		meters = append(meters, past.Meter(i))
		s.clients = append(s.clients, past.Meter(i).ID)
	}
	slices.Sort(s.clients)
	d, err := series.NewDataset(bare, meters)
	if err == nil {
		_, err = st.Import("history", d, s.clock.now())
	}
	s.store = st
	if err == nil {
		err = s.weather(past.Weather.Start, s.stage.arrive+beyond*daySeconds)
	}
	s.store = nil
	return errors.Join(err, st.Close())
}

func (s *site) openStore() (*store.Store, error) {
	return store.Open(filepath.Join(s.dir, "readings.db"), store.Config{Interval: s.stage.all.Interval, Clock: s.stage.all.Clock})
}

// weather stores the weather of [from, to). The past is observed weather, and the rest
// is a weather forecast without error.
func (s *site) weather(from, to int64) error {
	w, step := s.stage.all.Weather, s.stage.all.Seconds()
	now := s.clock.now()
	var rows []store.WeatherRow
	for t := from; t < to; t += step {
		i := (t - w.Start) / step
		if i >= int64(len(w.Columns[0])) {
			break
		}
		row := store.WeatherRow{Time: t, Issued: min(t, now.Unix())}
		for _, c := range w.Columns {
			row.Values = append(row.Values, c[i])
		}
		rows = append(rows, row)
	}
	r, err := s.store.PutWeather(now, w.Names, rows)
	if err == nil && len(r.Refused) > 0 {
		err = fmt.Errorf("%d rows of weather were refused: %s", len(r.Refused), r.Refused[0].Reason)
	}
	return err
}

// start opens the folder and starts all parts of the agent.
func (s *site) start(outer context.Context) error {
	ctx, stop := context.WithCancel(outer)
	s.stop = stop
	if err := s.open(); err != nil {
		stop()
		return fmt.Errorf("%s: %w", s.name, err)
	}
	intake, err := s.intake()
	if err != nil {
		return errors.Join(err, s.end())
	}
	listener := s.listener
	if s.listener = nil; listener == nil { // it was started before
		if listener, err = net.Listen("tcp", s.address); err != nil {
			return errors.Join(err, s.end())
		}
	}
	page, err := api.New(api.Config{Service: s.service, Intake: intake, Listen: s.address, Now: s.clock.now})
	if err != nil {
		return errors.Join(err, listener.Close(), s.end())
	}
	s.wire.dead.Store(false)
	s.run(ctx, "readings", intake.Run)
	s.run(ctx, "page", func(ctx context.Context) error { return page.Serve(ctx, listener) })
	allowed := policy.Default()
	for _, change := range relaxed {
		if err := allowed.Set(change); err != nil {
			return errors.Join(err, listener.Close(), s.end())
		}
	}
	s.run(ctx, "training", func(ctx context.Context) error {
		return agent.Run(ctx, agent.Config{
			Dir: s.dir, Name: s.identity.ID(), Server: s.identity.Server(), Client: mtls.Client(s.wire), Renew: s.identity.RenewIfDue, Source: s.source,
			Releases: dated{s.service.Host(), s.shift}, Kernel: s.kernel, Workers: 1, Policy: &allowed, Yield: s.service.Yield, Version: s.version, Log: s.log,
		})
	})
	return nil
}

func (s *site) run(ctx context.Context, what string, part func(context.Context) error) {
	s.running.Go(func() {
		if err := part(ctx); err != nil && ctx.Err() == nil {
			select {
			case s.failed <- fmt.Errorf("%s: %s: %w", s.name, what, err):
			default: // another part has failed already
			}
		}
	})
}

func (s *site) open() (err error) {
	if s.store, err = s.openStore(); err != nil {
		return err
	}
	all := s.stage.all
	young, err := serve.NewGeneric(s.kernel)
	if err != nil {
		return errors.Join(err, s.store.Close())
	}
	s.service, err = live.Open(live.Config{
		Dir: s.dir, Site: series.Dataset{Name: s.name, Generated: true, Interval: all.Interval, Clock: all.Clock, Country: all.Country},
		Clients: s.clients, H: ahead, Delay: delay, Store: s.store, Kernel: s.kernel, Generic: young, ShareScores: true, Now: s.clock.now, Log: s.log,
	})
	if err != nil {
		return errors.Join(err, s.store.Close())
	}
	if s.each != nil {
		s.service.Subscribe(s.each)
	}
	return nil
}

func (s *site) intake() (*readings.Intake, error) {
	clients := map[string]readings.Client{}
	for _, name := range s.clients {
		clients[name] = readings.Client{}
	}
	return readings.NewIntake(readings.Config{
		Store: s.store, Interval: s.stage.all.Interval, Zone: s.stage.all.Clock, Clients: clients, Now: s.clock.now,
		Log: func(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...)) },
	})
}

// source returns the current readings for training.
func (s *site) source() (*series.Dataset, func(), error) {
	all := s.stage.all
	from, to := all.Weather.Start, s.clock.now().Unix()/all.Seconds()*all.Seconds()
	d := series.Dataset{Name: s.name, Generated: true, Interval: all.Interval, Clock: all.Clock, Country: all.Country}
	var err error
	if d.Weather, _, err = s.store.Weather(from, to, to); err != nil {
		return nil, nil, err
	}
	known, err := s.store.Dataset(d, s.clients, from, to, store.OK)
	return known, func() {}, err
}

// end stops all parts and closes the folder. The files stay on disk.
func (s *site) end() error {
	s.stop()
	s.running.Wait()
	if s.service == nil {
		return nil
	}
	s.wire.CloseIdleConnections()
	err := errors.Join(s.service.Close(), s.store.Close())
	s.service, s.store = nil, nil
	return err
}

// dated changes the dates in reports to the server's clock, because a server drops reports
// that are older than 90 days.
type dated struct {
	release.Host
	shift int64 // days
}

// Reports implements release.Host.
func (d dated) Reports() ([]release.Report, func()) {
	all, sent := d.Host.Reports()
	for i := range all {
		all[i].Day += d.shift
	}
	return all, sent
}

// post sends the readings of [from, to) to the agent's HTTP interface, as a meter does. Some
// are missing.
func (s *site) post(ctx context.Context, d *series.Dataset, from, to int64) error {
	body := []byte("unique_id,ds,y\n")
	rows := 0
	for i := range d.Len() {
		m := d.Meter(i)
		for t := from; t < to; t += d.Seconds() {
			if v := at(m, t, d.Seconds()); v == v {
				body = append(append(append(body, m.ID...), ','), strconv.FormatInt(t, 10)...)
				body = append(strconv.AppendFloat(append(body, ','), v, 'g', -1, 32), '\n')
				rows++
			}
		}
	}
	if rows == 0 {
		return nil
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/v1/readings", bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "text/csv")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if said, err := io.ReadAll(io.LimitReader(r.Body, 1<<10)); err != nil || r.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%s refused readings: %s: %s", s.name, r.Status, said))
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// newSite makes the folder of an agent.
func newSite(dir string, number int, st *stage, c *clock, k *kernel.Set, l *lookout, log *slog.Logger, failed chan<- error) (*site, error) {
	name := fmt.Sprintf("agent-%d", number)
	s := &site{
		name: name, dir: filepath.Join(dir, name), stage: st, clock: c, kernel: k, log: log.With("agent", name), failed: failed,
		shift: (time.Now().Unix() - st.end) / daySeconds, wire: &wire{looking: l},
	}
	s.wire.dieAt.Store(-1)
	return s, os.MkdirAll(s.dir, 0o700)
}
