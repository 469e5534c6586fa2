package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"loadstar/agent/config"
	"loadstar/agent/identity"
	"loadstar/agent/mqtt"
	"loadstar/internal/boltfile"
	"loadstar/internal/finding"
	"loadstar/internal/service"
	"loadstar/series/store"
)

// agent checks an agent: configuration, folder, certificate, server, broker, port and
// readings.
func (x *examination) agent(ctx context.Context) {
	c, err := config.Read(x.Agent, os.Environ())
	if err != nil {
		x.Fail("configuration", "correct the file; docs/agent.md has all keys", "%v", err)
		return
	}
	x.OK("configuration", "%s: no mistakes", x.Agent)
	if _, err := os.Stat(c.Dir); err != nil {
		x.Warn("folder", "start the agent, which creates it", "%v", err)
		x.disk(".")
	} else {
		x.disk(c.Dir)
	}
	x.joined(ctx, c)
	if c.MQTT.Broker != "" {
		call, cancel := context.WithTimeout(ctx, callTime)
		m := mqtt.Settings(c)
		m.Version, m.Log = x.Version, slog.New(slog.DiscardHandler)
		m.Now = func() (time.Time, bool) { return time.Now(), true }
		if err := mqtt.Check(call, m); err != nil {
			x.Fail("broker", "check mqtt.broker, user and password_file, and that the broker runs", "%s: %v", c.MQTT.Broker, err)
		} else {
			x.OK("broker", "%s accepts the connection", c.MQTT.Broker)
		}
		cancel()
	}
	running := x.readings(ctx, c)
	if c.HTTP.Listen == "" {
		return
	}
	l, err := net.Listen("tcp", c.HTTP.Listen)
	switch {
	case err == nil:
		_ = l.Close() // nothing has connected
		x.OK("port "+c.HTTP.Listen, "free")
	case running:
		x.OK("port "+c.HTTP.Listen, "in use, as expected of a running agent%s", named(service.Holder(c.HTTP.Listen)))
	default:
		x.Fail("port "+c.HTTP.Listen, "stop that process, or change http.listen in "+x.Agent, "in use%s: %v", named(service.Holder(c.HTTP.Listen)), err)
	}
}

// joined checks the agent's certificate and its server.
func (x *examination) joined(ctx context.Context, c *config.Config) {
	if c.Server == config.ServerNone {
		x.OK("server", "none, as the configuration says")
		return
	}
	i, err := identity.Open(c.Dir)
	switch {
	case errors.Is(err, identity.ErrNotJoined) && c.Server == config.ServerOptional:
		x.OK("server", "the agent has joined no server, so it only forecasts")
		return
	case err != nil:
		x.Fail("server", "join with a token: loadstar agent join --dir "+c.Dir, "%v", err)
		return
	}
	left := time.Until(i.Expires())
	until := i.Expires().Local().Format("2006-01-02 15:04")
	const check = "agent's certificate"
	switch {
	case left <= 0:
		x.Fail(check, "join again with a new token", "expired at %s", until)
	case left < agentDaysWarn:
		x.Warn(check, "start the agent, which renews it; check that it reaches its server", "%s left, until %s", left.Round(time.Hour), until)
	default:
		x.OK(check, "%s left, until %s; a running agent renews the certificate", finding.Days(left), until)
	}
	x.server(ctx, i.Server(), i.HTTPClient())
}

// readings checks the age of the newest readings, in the folder or by asking the running
// agent. It reports whether an agent is running.
func (x *examination) readings(ctx context.Context, c *config.Config) (running bool) {
	path := c.File("readings.db")
	if _, err := os.Stat(path); err != nil {
		x.Warn("readings", "start the agent, and check the sources of its clients", "there are no readings yet")
		return false
	}
	s, err := store.Open(path, store.Config{Interval: c.Step(), Clock: c.Location(), Keep: time.Duration(c.Store.Keep)})
	if errors.Is(err, boltfile.ErrLocked) {
		x.OK("folder", "%s: an agent is running", c.Dir)
		ages, err := askAges(ctx, c)
		if err != nil {
			x.Warn("readings", "see loadstar agent status", "the running agent does not report it: %v", err)
			return true
		}
		x.ages(c, ages)
		return true
	}
	if err != nil {
		x.Fail("readings", "restore the file from a backup, or move it away and import again", "%v", err)
		return false
	}
	x.OK("folder", "%s: no agent is running", c.Dir)
	ages := map[string]time.Duration{}
	names, err := s.Clients()
	for _, name := range names {
		if _, end, ok, err := s.Span(name); err == nil && ok {
			ages[name] = time.Since(time.Unix(end, 0))
		}
	}
	if err := errors.Join(err, s.Close()); err != nil {
		x.Fail("readings", "check the disk", "%v", err)
		return false
	}
	x.ages(c, ages)
	return false
}

// ages adds a finding about the ages of the clients' newest readings.
func (x *examination) ages(c *config.Config, ages map[string]time.Duration) {
	if len(ages) == 0 {
		x.Warn("readings", "check the sources of the clients: loadstar agent check", "no client has any readings")
		return
	}
	old := 3*c.Step() + time.Duration(c.Forecast.Delay)
	late, oldest, which := 0, time.Duration(-1<<62), ""
	for name, age := range ages {
		if age > old {
			late++
		}
		if age > oldest || age == oldest && name < which {
			oldest, which = age, name
		}
	}
	if late > 0 {
		x.Warn("readings", "check the meters and the path of their readings: loadstar agent status", "%d of %d clients have no reading from the last %s; the oldest reading is that of %s, %s ago",
			late, len(ages), old, which, oldest.Round(time.Minute))
		return
	}
	x.OK("readings", "the newest readings of all %d clients are at most %s old", len(ages), oldest.Round(time.Minute))
}

// askAges requests the ages of the clients' newest readings from a running agent.
func askAges(ctx context.Context, c *config.Config) (map[string]time.Duration, error) {
	if c.HTTP.Listen == "" {
		return nil, errors.New("the agent has no HTTP interface")
	}
	token := ""
	if c.HTTP.TokenFile != "" {
		text, err := os.ReadFile(c.HTTP.TokenFile)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	text, err := get(ctx, "http://"+c.HTTP.Listen+"/metrics", token)
	if err != nil {
		return nil, err
	}
	ages := map[string]time.Duration{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), `loadstar_reading_age_seconds{client=`)
		if !ok {
			continue
		}
		name, value, ok := strings.Cut(rest, "} ")
		seconds, err := strconv.ParseFloat(value, 64)
		if client, unquoted := strconv.Unquote(name); ok && err == nil && unquoted == nil {
			ages[client] = time.Duration(seconds * float64(time.Second))
		}
	}
	return ages, nil
}

// get sends a request to a process on this machine. If the response is an error, get also
// returns its text.
func get(ctx context.Context, at, token string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	// Follow no redirects and use no proxy, because they would lead to another program.
	direct := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := direct.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	const most = 16 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("it returned %s", answer.Status)
	}
	return string(text), err
}
