package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"loadstar/agent"
	"loadstar/agent/config"
	"loadstar/agent/identity"
	"loadstar/agent/live"
	"loadstar/agent/mqtt"
	"loadstar/agent/readings"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// collectOften lets the heap grow to only 1.2 times the live heap before the next garbage
// collection, unless the environment says otherwise. Training and forecasting hardly
// allocate, so this costs almost no time.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}

// Run runs an agent that forecasts, until ctx ends.
func Run(ctx context.Context, o Options) error {
	collectOften()
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	for _, text := range o.Policy {
		if err := c.Policy.Set(text); err != nil {
			return err
		}
	}
	if err := o.Join.Once(ctx, c.Dir, c.Site.Name); err != nil {
		return err
	}
	x, err := Open(c, o)
	if err != nil {
		return err
	}
	return errors.Join(x.Run(ctx), x.Close())
}

// parts are the goroutines of an agent. If one of them fails, all end.
type parts struct {
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
}

func (p *parts) start(what string, run func(context.Context) error) {
	p.wg.Go(func() {
		if err := run(p.ctx); err != nil && p.ctx.Err() == nil {
			p.stop(fmt.Errorf("%s: %w", what, err))
		}
	})
}

// Run starts all parts of an agent and waits until ctx or one of them ends.
func (x *Agent) Run(outer context.Context) error {
	p := &parts{}
	p.ctx, p.stop = context.WithCancelCause(outer)
	defer p.stop(nil)
	intake, err := x.intake()
	if err != nil {
		return err
	}
	p.start("readings", intake.Run)
	if x.c.Inbox != "" {
		inbox, err := readings.OpenInbox(x.c.Inbox, intake)
		if err != nil {
			return fmt.Errorf("cannot open the inbox: %w", err)
		}
		p.start("inbox", inbox.Run)
	}
	if x.c.Weather.Address != "" {
		p.start("weather", func(ctx context.Context) error { return x.fetchWeather(ctx, intake) })
	}
	var client *mqtt.Client
	if x.c.MQTT.Broker != "" {
		if client, err = mqtt.New(broker(x.c, x.o.Version, x.o.Log), intake, published{x.Service, x.store}); err != nil {
			return err
		}
		x.Service.Subscribe(func(issued []*live.Issued) {
			var names []string
			for _, f := range issued {
				names = append(names, f.Client)
			}
			client.Publish(names...)
		})
		p.start("mqtt", client.Run)
	}
	if err := x.serve(p, intake); err != nil {
		p.stop(err)
	}
	x.train(p)
	if x.o.Now == nil {
		p.start("forecasts", x.Service.Run)
		p.start("reload", func(ctx context.Context) error { return x.reload(ctx, intake, client) })
	}
	names, err := x.clients()
	if err != nil {
		p.stop(err)
	}
	x.o.Log.Info("forecasting", "site", x.c.Site.Name, "clients", len(names), "steps", x.c.Site.Interval.String(), "ahead", x.c.Forecast.H.String())
	if p.ctx.Err() == nil {
		service.Ready(p.ctx, x.o.Log)
	}
	p.wg.Wait()
	if outer.Err() != nil {
		return nil
	}
	return context.Cause(p.ctx)
}

func (x *Agent) intake() (*readings.Intake, error) {
	clients, err := x.readingsClients()
	if err != nil {
		return nil, err
	}
	return readings.NewIntake(readings.Config{
		Store: x.store, Interval: x.c.Step(), Zone: x.c.Location(), Clients: clients, Flush: time.Duration(x.c.Store.Flush), Now: x.o.Now, Clock: clock,
		Log: func(format string, args ...any) { x.o.Log.Warn(fmt.Sprintf(format, args...)) },
	})
}

// train takes part in the training that the agent's server runs. An agent that has joined no
// server only forecasts.
func (x *Agent) train(p *parts) {
	log := x.o.Log
	if x.c.Server == config.ServerNone {
		return
	}
	i, err := identity.Open(x.c.Dir)
	if errors.Is(err, identity.ErrNotJoined) && x.c.Server == config.ServerOptional {
		log.Info("no server was joined; forecasting alone")
		return
	}
	if err != nil {
		p.stop(err)
		return
	}
	k, err := kernel.Default()
	if err != nil {
		p.stop(err)
		return
	}
	p.start("training", func(ctx context.Context) error {
		if err := x.waitForReadings(ctx); err != nil {
			return nil
		}
		log.Info("taking part in training", "agent", i.ID(), "server", i.Server())
		err := agent.Run(ctx, x.agent(i, k))
		if err != nil && x.c.Server == config.ServerOptional {
			log.Error("training has ended; forecasts go on", "error", err)
			return nil
		}
		return err
	})
}

// agent configures the part of the agent that trains.
func (x *Agent) agent(i *identity.Identity, k *kernel.Set) agent.Config {
	c := agent.Config{
		Dir: x.c.Dir, Name: i.ID(), Invitations: x.c.Train.Invitations, Server: i.Server(), Client: i.HTTPClient(), Renew: i.RenewIfDue, Source: x.source, Releases: x.Service.Host(),
		Kernel: k, Workers: x.c.Train.Workers, Policy: &x.c.Policy, Yield: x.Service.Yield, Audits: &x.audits, Version: x.o.Version, Log: x.o.Log,
		Announced: func(refused []string, reason string) {
			text := ""
			if len(refused) > 0 {
				text = fmt.Sprintf("the server refused %d clients, which train nothing: %s (%s)", len(refused), strings.Join(refused[:min(len(refused), 5)], ", "), reason)
			}
			x.refused.Store(&text)
		},
	}
	if x.o.Training != nil {
		x.o.Training(&c)
	}
	return c
}

// waitForReadings waits until a client has readings to train on.
func (x *Agent) waitForReadings(ctx context.Context) error {
	for {
		if names, err := x.store.Clients(); err == nil && len(names) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
		}
	}
}

// source returns the current measured readings for training.
func (x *Agent) source() (*series.Dataset, func(), error) {
	names, err := x.clients()
	if err != nil {
		return nil, nil, err
	}
	var from, to int64
	var known []string
	for _, name := range names {
		first, end, ok, err := x.store.Span(name)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		if len(known) == 0 || first < from {
			from = first
		}
		to = max(to, end)
		known = append(known, name)
	}
	at := x.Service.Site()
	site := series.Dataset{Name: x.c.Site.Name, Generated: at.Generated, Interval: at.Step, Clock: at.Zone, Country: x.c.Site.Country}
	if site.Weather, _, err = x.store.Weather(from, to, to); err != nil {
		return nil, nil, err
	}
	d, err := x.store.Dataset(site, known, from, to, store.OK)
	return d, func() {}, err
}

// reload rereads the clients and groups at every SIGHUP.
func (x *Agent) reload(ctx context.Context, intake *readings.Intake, client *mqtt.Client) error {
	c := make(chan os.Signal, 1)
	notifyReload(c)
	defer signal.Stop(c)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c:
			if err := x.reread(intake, client); err != nil {
				x.o.Log.Error("cannot reload the configuration; the agent keeps the old one", "error", err)
			}
		}
	}
}

func (x *Agent) reread(intake *readings.Intake, client *mqtt.Client) error {
	fresh, err := config.Read(x.o.Config, os.Environ())
	if err != nil {
		return err
	}
	merged := *x.c
	merged.Clients, merged.Groups = fresh.Clients, fresh.Groups
	next := &Agent{c: &merged, store: x.store}
	names, err := next.clients()
	if err != nil {
		return err
	}
	clients, err := next.readingsClients()
	if err != nil {
		return err
	}
	if client != nil {
		if err := client.SetSources(mqtt.Settings(&merged).Sources); err != nil {
			return err
		}
	}
	if err := x.Service.Reconfigure(names, merged.Groups); err != nil {
		return err
	}
	intake.SetClients(clients)
	x.fresh.Store(&merged)
	x.o.Log.Info("reloaded the clients and groups", "clients", len(names), "groups", len(merged.Groups))
	return nil
}
