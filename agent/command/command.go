// Package command implements the commands of an agent that forecasts. The programs loadstar-agent
// and loadstar share it.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"loadstar/agent"
	"loadstar/agent/audit"
	"loadstar/agent/config"
	"loadstar/agent/identity"
	"loadstar/agent/live"
	"loadstar/agent/mqtt"
	"loadstar/agent/readings"
	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// Options are the settings that all commands need.
type Options struct {
	Config string // path of agent.yaml
	// Policy changes the policy of the configuration; each is KEY=VALUE or none.
	Policy []string
	// Join is the server that the agent joins when it starts for the first time, or zero.
	Join    identity.Joining
	Version string // version of the program
	Out     io.Writer
	Log     *slog.Logger
	// Now is the clock of an agent inside another program, which must then call Tick and Work of
	// the Service. If Now is nil, the system's clock decides when the agent forecasts.
	Now func() time.Time
	// Listener replaces the address of the HTTP interface, and Training changes how the agent
	// trains. Both may be nil.
	Listener net.Listener
	Training func(*agent.Config)
}

// built is earlier than any correct clock.
var built = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock returns an error if the system's clock is certainly wrong.
func clock() error {
	if now := time.Now(); now.Before(built) {
		return fmt.Errorf("it shows %s; set it, for example with an NTP service", now.UTC().Format(time.DateTime))
	}
	return nil
}

// Agent is an opened agent: its configuration, its readings and its forecasts.
type Agent struct {
	// Service makes the forecasts.
	Service *live.Service

	o Options
	c *config.Config // the configuration at the start
	// fresh is the configuration with the reloaded clients and groups, or nil.
	fresh  atomic.Pointer[config.Config]
	store  *store.Store
	audits audit.Auditor
	// refused names the clients that the server refused. It may be empty or nil.
	refused atomic.Pointer[string]
	// generated is true if the imported history is synthetic.
	generated bool
}

// openStore opens the readings of a configuration and imports its history.
func openStore(c *config.Config, o Options) (*Agent, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	s, err := store.Open(c.File("readings.db"), store.Config{Interval: c.Step(), Clock: c.Location(), Keep: time.Duration(c.Store.Keep)})
	if err != nil {
		return nil, fmt.Errorf("cannot open the readings: %w", err)
	}
	x := &Agent{o: o, c: c, store: s}
	if c.History != "" {
		if err := x.importHistory(c.History); err != nil {
			_ = s.Close() // the earlier error is the cause
			return nil, err
		}
	}
	return x, nil
}

// importHistory imports a prepared file once.
func (x *Agent) importHistory(path string) error {
	d, closer, err := series.OpenPrepared(path)
	if err != nil {
		return fmt.Errorf("cannot open the history: %w", err)
	}
	defer closer.Close()
	if d.Interval != x.c.Step() {
		return fmt.Errorf("the history %s has an interval of %s, the site has %s; prepare the history with the site's interval", path, config.Duration(d.Interval), x.c.Site.Interval)
	}
	x.generated = x.generated || d.Generated
	x.c.Site.Country = cmp.Or(x.c.Site.Country, d.Country)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano())
	now := time.Now()
	if x.o.Now != nil {
		now = x.o.Now()
	}
	did, err := x.store.Import(key, d, now)
	if did && err == nil {
		x.o.Log.Info("imported the history", "file", path, "clients", d.Len())
	}
	return err
}

// clients returns the clients' names from the configuration, or, if it names none, those
// with readings.
func (x *Agent) clients() ([]string, error) {
	c := x.c
	if fresh := x.fresh.Load(); fresh != nil {
		c = fresh
	}
	if len(c.Clients) == 0 {
		return x.store.Clients()
	}
	return slices.Sorted(maps.Keys(c.Clients)), nil
}

// Open opens the agent of a configuration.
func Open(c *config.Config, o Options) (*Agent, error) {
	x, err := openStore(c, o)
	if err != nil {
		return nil, err
	}
	if err := x.openService(); err != nil {
		_ = x.store.Close() // the earlier error is the cause
		return nil, err
	}
	return x, nil
}

func (x *Agent) openService() error {
	c := x.c
	names, err := x.clients()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("there are no clients yet: list them under clients: in the configuration, or let 'run' import the history first")
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	fallback := issue.Fallback(c.Forecast.Fallback)
	var young *serve.Model
	if c.Forecast.Fallback == "generic" {
		if young, err = serve.NewGeneric(k); err != nil {
			return err
		}
		fallback = issue.LastWeek
	}
	x.Service, err = live.Open(live.Config{
		Dir:     c.Dir,
		Site:    series.Dataset{Name: c.Site.Name, Generated: x.generated, Interval: c.Step(), Clock: c.Location(), Country: c.Site.Country},
		Clients: names, Groups: c.Groups, H: int(time.Duration(c.Forecast.H) / c.Step()), Levels: c.Forecast.Levels,
		Fallback: fallback, Delay: time.Duration(c.Forecast.Delay), Store: x.store, Model: c.Model, Kernel: k, Generic: young,
		ShareScores: c.Share.Scores, Now: x.o.Now, Clock: clock, Log: x.o.Log,
	})
	return err
}

// Close closes the files of an agent that is not running.
func (x *Agent) Close() error {
	var err error
	if x.Service != nil {
		err = x.Service.Close()
	}
	return errors.Join(err, x.store.Close())
}

// readingsClients returns the settings by which the readings of each client are judged.
func (x *Agent) readingsClients() (map[string]readings.Client, error) {
	names, err := x.clients()
	out := map[string]readings.Client{}
	for _, name := range names {
		c := x.c.Clients[name]
		out[name] = readings.Client{Net: c.Sign == config.SignNet, Limit: c.Limit}
	}
	return out, err
}

// broker returns the connection to the configured broker.
func broker(c *config.Config, version string, log *slog.Logger) mqtt.Config {
	m := mqtt.Settings(c)
	m.Version, m.Log = version, log
	m.Now = func() (time.Time, bool) { return time.Now(), clock() == nil }
	return m
}

// published contains the forecasts that MQTT publishes.
type published struct {
	*live.Service
	store *store.Store
}

// Clients returns the names of all clients and groups.
func (p published) Clients() []string {
	var names []string
	for _, c := range p.Service.Clients() {
		names = append(names, c.Name)
	}
	return names
}

// Forecast returns the newest forecast of a client.
func (p published) Forecast(client string) (mqtt.Forecast, bool) {
	x, err := p.Service.Forecast(client)
	if err != nil {
		return mqtt.Forecast{}, false
	}
	at := p.Site()
	return mqtt.Forecast{
		Forecast: x.Forecast, Issued: time.Unix(x.Issued, 0), Step: at.Step, Zone: at.Zone, Generated: at.Generated,
	}, true
}
