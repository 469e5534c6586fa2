package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"loadstar/agent/config"
	"loadstar/agent/identity"
	"loadstar/agent/mqtt"
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// callTime is how long a command waits for a broker, a server or a running agent.
const callTime = 15 * time.Second

// certificateWarning is the remaining validity below which the check warns. A running agent
// renews its certificate earlier.
const certificateWarning = 48 * time.Hour

// Check validates the configuration, opens the model, and connects to the broker, the server
// and the weather service. It prints what the agent would do and whether it would train the
// given plans. It changes nothing.
func Check(ctx context.Context, o Options, plans ...string) error {
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	say := func(format string, a ...any) { fmt.Fprintf(plain{o.Out}, format+"\n", a...) }
	say("%s: no mistakes", o.Config)
	say("site %s, %s, steps of %s; folder %s", c.Site.Name, c.Site.Zone, c.Site.Interval, c.Dir)
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		x := c.Clients[name]
		from := "files in the inbox and HTTP"
		if x.Source == config.SourceMQTT {
			from = "MQTT topic " + x.Topic
		}
		say("client %s: %s", name, from)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Groups)) {
		say("group %s: %s", name, strings.Join(c.Groups[name], ", "))
	}
	say("forecasts of %s after each step, at most %s after its end; quantiles %v", c.Forecast.H, c.Forecast.Delay, c.Forecast.Levels)
	var problems []error
	ok := func(what string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", what, err))
			return
		}
		say("%s: ok", what)
	}
	ok("clock", clock())
	report := func(found finding.List) {
		for _, f := range found {
			switch f.Level {
			case finding.OK:
				say("%s: %s", f.Check, f.Text)
			case finding.Warn:
				say("%s: warning: %s; %s", f.Check, f.Text, f.Do)
			default:
				problems = append(problems, fmt.Errorf("%s: %s; %s", f.Check, f.Text, f.Do))
			}
		}
	}
	if _, err := os.Stat(c.Dir); err == nil {
		var found finding.List
		disk.Room(&found, "disk", c.Dir)
		report(found)
	}
	if c.History != "" {
		ok("history "+c.History, checkHistory(c))
	}
	if c.Model == "" {
		say("model: none; forecasts are last week's load until a server releases a model")
	} else {
		ok("model "+c.Model, checkModel(c, say))
	}
	if c.MQTT.Broker != "" {
		call, cancel := context.WithTimeout(ctx, callTime)
		ok("broker "+c.MQTT.Broker, mqtt.Check(call, broker(c, o.Version, o.Log)))
		cancel()
	}
	if c.Weather.Address != "" {
		ok("weather "+c.Weather.Address, checkWeather(ctx, c, say))
	}
	if c.HTTP.Listen != "" {
		ok("http "+c.HTTP.Listen, checkListen(c.HTTP.Listen))
	}
	checkServer(ctx, c, say, ok, report)
	if c.Server != config.ServerNone {
		say("policy: %s", c.Policy)
	}
	for _, path := range plans {
		condition, err := checkPlan(c, path)
		if ok("plan "+path, err); condition != "" {
			say("plan %s: the agent trains it if %s", path, condition)
		}
	}
	return errors.Join(problems...)
}

// checkPlan returns an error if the agent would decline a plan. It cannot check rules that
// depend on the fleet's size or on readings, which are known only when the plan runs. The
// condition describes the requirements that a private plan's keepers must meet.
func checkPlan(c *config.Config, path string) (condition string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	p, err := recipe.Read(text)
	if err != nil {
		return "", err
	}
	if p, err = recipe.Resolve(p, c.Step()); err != nil {
		return "", fmt.Errorf("this agent would decline it: %w", err)
	}
	reasons := c.Policy.Check(p, 0)
	reason, condition := c.Policy.CheckKeepers(p)
	if reason != "" {
		reasons = append(reasons, reason)
	}
	if len(reasons) > 0 {
		return "", fmt.Errorf("this agent would decline it: %s", strings.Join(reasons, "; "))
	}
	return condition, nil
}

func checkHistory(c *config.Config) error {
	d, closer, err := series.OpenPrepared(c.History)
	if err != nil {
		return err
	}
	defer closer.Close()
	if d.Interval != c.Step() {
		return fmt.Errorf("it has an interval of %s, the site has %s", config.Duration(d.Interval), c.Site.Interval)
	}
	return nil
}

func checkModel(c *config.Config, say func(string, ...any)) error {
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	f, err := serve.Open(c.Model, nil, k)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the file was only read
	if f.Model.Step != 0 && f.Model.Step != c.Step() {
		return fmt.Errorf("it is for an interval of %s, the site has %s", config.Duration(f.Model.Step), c.Site.Interval)
	}
	country, names := c.Site.Country, slices.Collect(maps.Keys(c.Clients))
	if c.History != "" {
		if d, closer, err := series.OpenPrepared(c.History); err == nil {
			country = cmp.Or(country, d.Country)
			for i := 0; len(c.Clients) == 0 && i < d.Len(); i++ {
				names = append(names, strings.Clone(d.Meter(i).ID))
			}
			_ = closer.Close() // the file was only read
		}
	}
	for _, need := range f.Model.Problem.Names() {
		switch {
		case need == "holidays" && country == "":
			return errors.New("it uses public holidays; set the country of the site, such as site: {country: DE}")
		case (need == "temperature" || need == "wind") && c.Weather.Address == "":
			say("model %s reads the weather column %s: set weather.address, or send weather to the inbox or to /v1/weather", f.Model.Plan.Name, need)
		}
	}
	own := 0
	for _, name := range names {
		if _, err := f.Client(name); err == nil {
			own++
		}
	}
	say("model %s: %d of %d clients have their own personal layers; the agent fits those of the others", f.Model.Plan.Name, own, len(names))
	return nil
}

// checkListen checks an address that a running agent may already use.
func checkListen(address string) error {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l.Close()
	}
	if c, dialled := net.DialTimeout("tcp", address, time.Second); dialled == nil {
		return c.Close()
	}
	return err
}

// checkServer calls the agent's server. It also checks the agent's certificate, and compares this
// machine's clock with the server's.
func checkServer(ctx context.Context, c *config.Config, say func(string, ...any), ok func(string, error), report func(finding.List)) {
	if c.Server == config.ServerNone {
		say("server: none")
		return
	}
	i, err := identity.Open(c.Dir)
	if errors.Is(err, identity.ErrNotJoined) && c.Server == config.ServerOptional {
		say("server: none; the agent has joined no server and forecasts alone")
		return
	}
	if err != nil {
		ok("server", err)
		return
	}
	var found finding.List
	found.Validity("agent's certificate", time.Time{}, i.Expires(), certificateWarning, "start the agent, which renews it, and check that it reaches its server; if it has expired, join again with a new token")
	call, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(call, http.MethodGet, i.Server(), nil)
	if err != nil {
		ok("server "+i.Server(), err)
		return
	}
	asked := time.Now()
	answer, err := i.HTTPClient().Do(r)
	if err == nil {
		took := time.Since(asked)
		if theirs, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			// The header contains whole seconds, so half a second is added to it.
			found.Clock("clock and the server", asked.Add(took/2).Sub(theirs.Add(500*time.Millisecond)), "the server's")
		}
		err = answer.Body.Close()
	}
	ok("server "+i.Server(), err)
	report(found)
}

// Discover listens to a broker for some time, and prints the topics that look like meters, with
// lines for agent.yaml. If c has no address, Discover uses the address in the configuration.
func Discover(ctx context.Context, o Options, c mqtt.Config, listen time.Duration) error {
	if c.Broker == "" {
		file, err := config.Read(o.Config, os.Environ())
		if err != nil {
			return fmt.Errorf("name a broker, such as mqtt://broker.local, or a configuration: %w", err)
		}
		c = mqtt.Settings(file)
	}
	c.Version, c.Log, c.Sources = o.Version, o.Log, nil
	fmt.Fprintf(o.Out, "listening to %s for %s\n", c.Broker, listen)
	found, err := mqtt.Discover(ctx, c, listen)
	if err != nil {
		return err
	}
	return mqtt.Print(o.Out, found)
}

// Import adds the contents of prepared files to the readings of an agent that is not running.
func Import(o Options, files []string) error {
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	c.History = ""
	x, err := openStore(c, o)
	if err != nil {
		return err
	}
	for _, path := range files {
		if err := x.importHistory(path); err != nil {
			return errors.Join(err, x.Close())
		}
		fmt.Fprintf(o.Out, "imported %s\n", path)
	}
	return x.Close()
}
