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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"loadstar/agent"
	"loadstar/agent/command"
	"loadstar/agent/config"
	"loadstar/agent/live"
	"loadstar/agent/release"
	"loadstar/internal/mtls"
	"loadstar/series"
)

// clock is the time at the buildings. The time changes only when the demo changes it.
type clock struct{ unix atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(c.unix.Load(), 0) }

// set moves the clock to shortly after the end of a step.
func (c *clock) set(cutoff int64) { c.unix.Store(cutoff + int64(delay/time.Second) + 4) }

// delay is how long after the end of a step an agent waits for readings.
const delay = 2 * time.Minute

// relaxed lists the changes to the agents' default policy. The buildings have only 100 days of
// readings, and there may be few of them. They need no protection, because they are generated.
var relaxed = []string{"least_client_examples=500", "whole_blocks=false", "least_cohort=2", "least_merge=2", "least_fleet=2"}

// ahead is the number of steps that agents forecast.
const ahead = 24

// site is an agent of the demo with its own folder, readings, forecasts, training, HTTP
// interface and page. It can be stopped at any time and restarted.
type site struct {
	name, dir string
	version   string // version of the program
	clients   []string
	stage     *stage
	clock     *clock
	log       *slog.Logger
	shift     int64 // real time minus the clock's time, in days
	wire      *wire
	each      func([]*live.Issued) // receives all forecasts
	listener  net.Listener         // listener of the page, until the agent starts
	address   string               // address of the page

	service *live.Service
	agent   *command.Agent // nil while it is stopped
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  chan<- error
}

// start opens the folder and starts all parts of the agent.
func (s *site) start(outer context.Context) error {
	c, err := config.Read(filepath.Join(s.dir, configFile), nil)
	if err != nil {
		return err
	}
	if s.listener == nil { // the agent was already started once
		if s.listener, err = net.Listen("tcp", s.address); err != nil {
			return err
		}
	}
	s.agent, err = command.Open(c, command.Options{
		Version: s.version, Log: s.log, Now: s.clock.now, Listener: s.listener,
		Training: func(c *agent.Config) {
			s.wire.base = c.Client.Transport
			c.Client, c.Releases = mtls.Client(s.wire), dated{c.Releases, s.shift}
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.service, s.listener = s.agent.Service, nil
	s.service.Subscribe(s.each)
	s.wire.dead.Store(false)
	ctx, stop := context.WithCancel(outer)
	s.stop = stop
	s.running.Go(func() {
		if err := s.agent.Run(ctx); err != nil {
			select {
			case s.failed <- fmt.Errorf("%s: %w", s.name, err):
			default: // the channel already contains an earlier error
			}
		}
	})
	return nil
}

// end stops all parts and closes the folder. The files stay on disk.
func (s *site) end() error {
	if s.listener != nil { // the agent did not start
		return s.listener.Close()
	}
	if s.agent == nil {
		return nil
	}
	s.stop()
	s.running.Wait()
	s.wire.CloseIdleConnections()
	err := s.agent.Close()
	s.agent = nil
	return err
}

// dated converts the dates in reports to the server's clock, because a server drops reports
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

// deliver sends the readings of [from, to), as a meter does. Some readings are missing.
func (s *site) deliver(ctx context.Context, d *series.Dataset, from, to int64) error {
	body := []byte("unique_id,ds,y\n")
	for i := range d.Len() {
		m := d.Meter(i)
		for t := from; t < to; t += d.Seconds() {
			if v := at(m, t, d.Seconds()); v == v {
				body = append(append(append(body, m.ID...), ','), strconv.FormatInt(t, 10)...)
				body = append(strconv.AppendFloat(append(body, ','), v, 'g', -1, 32), '\n')
			}
		}
	}
	return s.post(ctx, "/v1/readings", body)
}

// announce sends the weather of [from, to), as a weather service does. It is a forecast without
// errors.
func (s *site) announce(ctx context.Context, from, to int64) error {
	w, step := s.stage.all.Weather, s.stage.all.Seconds()
	body := []byte("ds," + strings.Join(w.Names, ","))
	for t := from; t < min(to, w.Start+int64(len(w.Columns[0]))*step); t += step {
		body = strconv.AppendInt(append(body, '\n'), t, 10)
		for _, c := range w.Columns {
			body = strconv.AppendFloat(append(body, ','), float64(c[(t-w.Start)/step]), 'g', -1, 32)
		}
	}
	return s.post(ctx, "/v1/weather", append(body, '\n'))
}

// post sends a CSV file to the agent's HTTP interface.
func (s *site) post(ctx context.Context, path string, body []byte) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+path, bytes.NewReader(body))
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
		return errors.Join(err, fmt.Errorf("%s refused what was sent to %s: %s: %s", s.name, path, r.Status, said))
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// newSite creates an agent and its folder.
func newSite(dir string, number int, st *stage, c *clock, l *lookout, log *slog.Logger, failed chan<- error) (*site, error) {
	name := fmt.Sprintf("agent-%d", number)
	s := &site{
		name: name, dir: filepath.Join(dir, name), stage: st, clock: c, log: log.With("agent", name), failed: failed,
		shift: (time.Now().Unix() - st.end) / daySeconds, wire: &wire{looking: l},
	}
	s.wire.dieAt.Store(-1)
	return s, os.MkdirAll(s.dir, 0o700)
}
