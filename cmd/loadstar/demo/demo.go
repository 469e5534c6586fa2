// Package demo shows the product in a minute, with generated buildings and with the real server
// and real agents in one process. The agents have their own folders and communicate with the
// server over mutual TLS. One of them is killed during training.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"loadstar/agent/identity"
	"loadstar/internal/proc"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/web"
)

// Config configures a demo.
type Config struct {
	Clients, Agents, Rounds int
	Seed                    uint64
	// Today is the day after the last reading. It is fixed by default, so a seed always
	// gives the same readings.
	Today time.Time
	// Port is the port of the server's page. If it is in use, the next free port is used.
	Port int
	// Keep is a new folder for all files. If it is empty, they are in a temporary folder,
	// which is removed at the end.
	Keep string
	// Browse opens the page in a browser. It may be nil.
	Browse func(url string)
	// Stay, if not nil, is called with the result. The pages are served until it returns.
	Stay func(*Result)
	// Out receives human-readable text. Bar shows progress on one line, and may be nil.
	Out io.Writer
	Bar func(done, total int, note string)
	// Version is the displayed version of the program.
	Version string
	// Log receives the messages of server and agents. If it is nil, they are discarded.
	Log *slog.Logger
}

// Check returns an error if the demo cannot run with the configuration.
func (c Config) Check() error {
	switch {
	case c.Agents < 2 || c.Agents > 16:
		return fmt.Errorf("--agents is %d: want 2 to 16, because one of them is killed", c.Agents)
	case c.Clients < 2*c.Agents || c.Clients > 1000:
		return fmt.Errorf("--clients is %d: want at least two for each of the %d agents, and at most 1000", c.Clients, c.Agents)
	case c.Rounds < 3 || c.Rounds > 1000:
		return fmt.Errorf("--rounds is %d: want 3 to 1000", c.Rounds)
	case c.Today.Year() < 2016 || c.Today.Year() > 2100:
		return fmt.Errorf("--today is %s: want a day from 2016 to 2100", c.Today.Format(time.DateOnly))
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("--port is %d: want 0 to 65535", c.Port)
	}
	return nil
}

// Defaults returns the configuration for which the demo was tuned.
func Defaults() Config {
	return Config{Clients: 42, Agents: 4, Rounds: defaultRounds, Port: 7445, Seed: 1, Today: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
}

// Result contains the measurements of the demo.
type Result struct {
	Generated bool     `json:"generated"` // always true: no meter measured the readings
	Seed      uint64   `json:"seed"`
	Today     string   `json:"today"`
	Clients   int      `json:"clients"`
	Agents    int      `json:"agents"`
	Rounds    int      `json:"rounds"`
	Methods   []Method `json:"methods"`
	// Steps is the number of compared forecast values, and CutoffHours the time between
	// the forecasts.
	Steps       int     `json:"steps_compared"`
	CutoffHours int     `json:"hours_between_forecasts"`
	TestDays    int     `json:"test_days"`
	Coverage    float64 `json:"coverage_p10_p90"`
	// RawReadingsFound is the number of pairs of consecutive readings in the bytes that
	// agents sent, at any offset. Searched is the number of searched bytes. Agents do send
	// updates, which are computed from readings.
	RawReadingsFound int64    `json:"raw_readings_found"`
	Searched         int64    `json:"bytes_searched"`
	SentMB           float64  `json:"mb_sent_per_client"`
	Killed           Killed   `json:"killed"`
	Receipts         Receipts `json:"receipts"`
	Release          string   `json:"release"`
	Serving          int      `json:"clients_serving_release"`
	Page             string   `json:"page"`
	AgentPages       []string `json:"agent_pages"`
	Folder           string   `json:"folder,omitempty"`
	// Continue contains the commands that continue with the folder after the demo has ended, one
	// for the server and one for each agent.
	Continue   []string `json:"continue,omitempty"`
	Seconds    float64  `json:"seconds"`
	CPUSeconds float64  `json:"cpu_seconds"`
}

// Killed describes what happened to the killed agent.
type Killed struct {
	Agent   string  `json:"agent"`
	Clients int     `json:"clients"`
	Round   int     `json:"round"`
	Back    bool    `json:"back"`
	Seconds float64 `json:"seconds"` // time until it was back
	// Missed is the number of its clients' updates that were not counted, and CountedAfter the
	// number of those that were counted. Both numbers count from the round in which the agent
	// was killed.
	Missed       int64 `json:"missed"`
	CountedAfter int64 `json:"counted_after"`
}

// Run runs the demo.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	dir, remove, err := folder(c.Keep)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	x := &show{Config: c, dir: dir, story: newStory(c.Out, c.Bar), failed: make(chan error, 1), ended: closed()}
	result, err := x.run(ctx)
	x.story.stop()
	cancel()
	return result, errors.Join(err, x.close(), remove())
}

// folder creates the folder of a demo.
func folder(keep string) (dir string, remove func() error, err error) {
	if keep == "" {
		dir, err = os.MkdirTemp("", "loadstar-demo-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	if err = os.Mkdir(keep, 0o700); errors.Is(err, os.ErrExist) {
		return "", nil, fmt.Errorf("%s exists already: give --keep the name of a new folder", keep)
	}
	return keep, func() error { return nil }, err
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// show is a demo in progress.
type show struct {
	Config
	dir    string
	story  *story
	kernel *kernel.Set
	stage  *stage
	clock  clock
	paper  *paper
	sites  []*site
	fleet  *fleet
	failed chan error
	ended  <-chan struct{} // closed when the server has ended
	result Result
}

func (x *show) run(ctx context.Context) (*Result, error) {
	began, cpu := time.Now(), proc.CPUTime()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	go func() {
		select {
		case err := <-x.failed:
			fail(err)
		case <-ctx.Done():
		}
	}()
	err := x.acts(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause // the error that cancelled all other parts
		}
		return nil, err
	}
	x.result.Seconds, x.result.CPUSeconds = time.Since(began).Seconds(), (proc.CPUTime() - cpu).Seconds()
	x.story.summary(&x.result, x)
	if x.Stay != nil {
		x.Stay(&x.result)
	}
	return &x.result, nil
}

// acts runs the parts of the demo in order.
func (x *show) acts(ctx context.Context) error {
	for _, act := range []func(context.Context) error{x.prepare, x.open, x.train, x.release, x.lapse, x.judge} {
		if err := act(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// prepare generates the buildings.
func (x *show) prepare(context.Context) (err error) {
	x.story.title(x.Clients, x.Seed)
	if x.kernel, err = kernel.Default(); err != nil {
		return err
	}
	if x.stage, err = newStage(x.Seed, x.Clients, x.Today); err != nil {
		return err
	}
	x.clock.set(x.stage.arrive)
	x.paper = newPaper(x.stage)
	looking := newLookout(x.stage.all)
	for i := range x.Agents {
		s, err := newSite(x.dir, i+1, x.stage, &x.clock, looking, x.Log, x.failed)
		if err != nil {
			return err
		}
		s.each, s.version = x.paper.take, x.Version
		if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		s.address = s.listener.Addr().String()
		x.sites = append(x.sites, s)
	}
	return nil
}

// open starts the server and lets the agents join.
func (x *show) open(ctx context.Context) (err error) {
	var links []web.Link
	for _, s := range x.sites {
		links = append(links, web.Link{Title: s.name, URL: "http://" + s.address + "/"})
	}
	if x.fleet, x.ended, err = startServer(ctx, filepath.Join(x.dir, "server"), x.Config, links, x.failed); err != nil {
		return err
	}
	x.story.say("server up: ledger, mutual TLS")
	page, err := x.fleet.login(ctx)
	if err != nil {
		return err
	}
	x.result.Page = page
	x.story.say("page: %s", page)
	if x.Browse != nil {
		x.Browse(page)
	}
	token, err := x.fleet.CreateToken(ctx, &v1.CreateTokenRequest{Note: "demo", Uses: int64(x.Agents), TtlSeconds: 600})
	if err != nil {
		return err
	}
	g, all := errgroup.WithContext(ctx)
	for i, s := range x.sites {
		g.Go(func() error {
			if _, err := identity.Join(all, s.dir, x.fleet.address, token.Token, s.name); err != nil {
				return err
			}
			past, err := x.stage.part(i, x.Agents, 0, x.stage.arrive)
			if err != nil {
				return err
			}
			if err := s.write(past); err != nil {
				return err
			}
			if err := s.start(ctx); err != nil {
				return err
			}
			if err := s.announce(all, x.stage.arrive, x.stage.arrive+beyond*daySeconds); err != nil {
				return err
			}
			s.service.Tick() // forecasts before any training
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	x.story.say("%d agents joined, each with %d days of its own buildings", x.Agents, trainDays+checkDays)
	x.story.note("their policy is less strict than the default: %s", strings.Join(relaxed, ", "))
	x.story.say("forecasts for all buildings, before any training, by the model in the binary")
	return nil
}

// close ends all agents and the server.
func (x *show) close() error {
	var err error
	for _, s := range x.sites {
		err = errors.Join(err, s.end())
	}
	<-x.ended
	return err
}
