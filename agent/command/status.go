package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"loadstar/agent/config"
	"loadstar/agent/live"
	"loadstar/agent/readings"
	"loadstar/forecast/issue"
	"loadstar/internal/boltfile"
)

// Status prints the state of every client. It asks the running agent, or reads the folder if
// none is running.
func Status(ctx context.Context, o Options) error {
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	return ask(ctx, c, http.MethodGet, "/v1/status", o, func(x *Agent) error {
		fmt.Fprintln(o.Out, "the agent is not running")
		return writeStatus(plain{o.Out}, x.Service, nobody, time.Now())
	})
}

// Model changes the model of a client: the action is pin, unpin or rollback.
func Model(ctx context.Context, o Options, action, client string) error {
	if !isAction(action) {
		return fmt.Errorf("%q is no action; use pin, unpin or rollback", action)
	}
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	path := "/v1/clients/" + url.PathEscape(client) + "/model/" + action
	return ask(ctx, c, http.MethodPost, path, o, func(x *Agent) error {
		if err := act(x.Service, action, client); err != nil {
			return err
		}
		return writeClient(plain{o.Out}, x.Service, client)
	})
}

func isAction(s string) bool { return s == "pin" || s == "unpin" || s == "rollback" }

func act(s *live.Service, action, client string) error {
	switch action {
	case "pin":
		return s.Pin(client)
	case "unpin":
		return s.Unpin(client)
	}
	return s.Rollback(client)
}

// ask sends a request to the running agent and prints its answer. If no agent is running, it
// opens the folder and calls offline.
func ask(ctx context.Context, c *config.Config, method, path string, o Options, offline func(*Agent) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if c.HTTP.Listen != "" {
		done, err := call(ctx, c, method, path, o.Out)
		if done || err != nil {
			return err
		}
	}
	return stopped(c, o, offline)
}

// stopped opens the folder of an agent that is not running.
func stopped(c *config.Config, o Options, offline func(*Agent) error) error {
	copied := *c
	copied.History, copied.Model = "", "" // what was imported before is enough
	x, err := Open(&copied, o)
	if errors.Is(err, boltfile.ErrLocked) {
		return fmt.Errorf("an agent is running in %s, but does not answer at %q: %w", c.Dir, c.HTTP.Listen, err)
	} else if err != nil {
		return err
	}
	return errors.Join(offline(x), x.Close())
}

// call sends a request to the running agent and copies its answer to out. It returns false if
// nothing listens at the agent's address.
func call(ctx context.Context, c *config.Config, method, path string, out io.Writer) (bool, error) {
	code, text, err := request(ctx, c, method, path)
	switch {
	case code == 0 || err != nil:
		return code != 0, err
	case code != http.StatusOK:
		return true, refusal(c, code, text)
	}
	_, err = plain{out}.Write(text)
	return true, err
}

// refusal returns the error for an answer with an unexpected status code.
func refusal(c *config.Config, code int, text []byte) error {
	return fmt.Errorf("the agent at %s answers \"%d %s\": %.500q", c.HTTP.Listen, code, http.StatusText(code), strings.TrimSpace(string(text)))
}

// request sends a request to the running agent. The code is 0 if nothing listens at its
// address.
func request(ctx context.Context, c *config.Config, method, path string) (code int, text []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.HTTP.Listen+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if c.HTTP.TokenFile != "" {
		token, err := os.ReadFile(c.HTTP.TokenFile)
		if err != nil {
			return 0, nil, fmt.Errorf("cannot read the token of the HTTP interface: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := direct.Do(r)
	if err != nil {
		return 0, nil, nil // no agent listens there
	}
	defer answer.Body.Close()
	const most = 1 << 20
	text, err = io.ReadAll(io.LimitReader(answer.Body, most))
	return answer.StatusCode, text, err
}

// direct sends a request to the agent itself. It uses no proxy and follows no redirect,
// because the token must not reach another program.
var direct = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// plain replaces terminal control characters. They could be in names of releases from a server,
// in names of models from a folder, and in the response of another program at the agent's
// address.
type plain struct{ to io.Writer }

func (p plain) Write(b []byte) (int, error) {
	if _, err := io.WriteString(p.to, printable(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// control adds to an HTTP interface the handlers that the commands status, accept and model
// need.
func control(mux *http.ServeMux, s *live.Service, intake *readings.Intake, refused func() *string) {
	mux.HandleFunc("POST /v1/clients/{client}/scale", func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		err := acceptScale(&b, intake, r.PathValue("client"))
		if errors.Is(err, readings.ErrClient) {
			err = live.ErrUnknown
		}
		answer(w, &b, err)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		err := writeStatus(&b, s, intake.Receiving, time.Now())
		if text := refused(); text != nil && *text != "" && err == nil {
			fmt.Fprintln(&b, *text)
		}
		answer(w, &b, err)
	})
	mux.HandleFunc("POST /v1/clients/{client}/model/{action}", func(w http.ResponseWriter, r *http.Request) {
		action, client := r.PathValue("action"), r.PathValue("client")
		if !isAction(action) {
			http.NotFound(w, r)
			return
		}
		err := act(s, action, client)
		var b bytes.Buffer
		if err == nil {
			err = writeClient(&b, s, client)
		}
		answer(w, &b, err)
	})
}

func answer(w http.ResponseWriter, b *bytes.Buffer, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case errors.Is(err, live.ErrUnknown):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		_, _ = w.Write(b.Bytes()) // the client has gone
	}
}

// receiving returns what a client has sent since the agent started.
type receiving func(client string) (readings.Receiving, bool)

// nobody is used as receiving if no agent is running.
func nobody(string) (readings.Receiving, bool) { return readings.Receiving{}, false }

// writeStatus writes a line for each client and group.
func writeStatus(w io.Writer, s *live.Service, arrived receiving, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	at := s.Site()
	refused := map[string]string{}
	for _, m := range s.Models() {
		for _, name := range m.Refused {
			if refused[name] == "" {
				refused[name] = m.Release
			}
		}
	}
	clients := s.Clients()
	for _, c := range clients {
		if r, ok := arrived(c.Name); ok && c.Newest == 0 {
			fmt.Fprintf(t, "%s\t%s\n", c.Name, describeReceiving(r, at, now))
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", c.Name, describeReadings(c, at, now), describeForecast(c, at), describeModel(c, refused[c.Name]), describeScores(c, at))
	}
	if err := s.Ready(); err != nil {
		fmt.Fprintf(t, "not ready: %v\n", err)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := writeFindings(w, s, clients); err != nil {
		return err
	}
	return writeWeather(w, clients)
}

// writeFindings writes the problems of readings and what to do about them.
func writeFindings(w io.Writer, s *live.Service, clients []live.ClientStatus) error {
	for _, c := range clients {
		if len(c.Findings) == 0 || len(c.Members) > 0 {
			continue
		}
		q, err := s.Quality(c.Name)
		if err != nil {
			return err
		}
		for _, f := range q.Findings {
			if !slices.Contains(c.Findings, f.Code) {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s: %s: %s %s\n", c.Name, f.Code, f.Message, f.Advice); err != nil {
				return err
			}
		}
	}
	return nil
}

// Accept makes the scale of a client's bad readings the client's new scale.
func Accept(ctx context.Context, o Options, client string) error {
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	return ask(ctx, c, http.MethodPost, "/v1/clients/"+url.PathEscape(client)+"/scale", o, func(x *Agent) error {
		intake, err := x.intake()
		if err != nil {
			return err
		}
		return acceptScale(plain{o.Out}, intake, client)
	})
}

func acceptScale(w io.Writer, intake *readings.Intake, client string) error {
	n, kw, err := intake.AcceptScale(client)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: the readings that were marked bad (%d) are used; from now on, readings up to %.4g kW are\n", client, n, kw)
	return err
}

// writeWeather writes how much less accurate models trained with weather are because they
// receive none.
func writeWeather(w io.Writer, clients []live.ClientStatus) error {
	said := map[issue.Reason][]string{}
	for _, c := range clients {
		if _, ok := c.Reason.WeatherCost(); ok && len(c.Members) == 0 {
			said[c.Reason] = append(said[c.Reason], c.Name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(said)) {
		a, _ := reason.WeatherCost() // every key has a cost
		names := said[reason]
		who := strings.Join(names, ", ")
		if len(names) > 3 {
			who = fmt.Sprintf("%d clients", len(names))
		}
		if _, err := fmt.Fprintf(w, "no weather for %s: %s %s\n", who, a.Message, a.Advice); err != nil {
			return err
		}
	}
	return nil
}

func writeClient(w io.Writer, s *live.Service, client string) error {
	c, err := s.Client(client)
	if err != nil {
		return err
	}
	state := "may change its model"
	if c.Pinned {
		state = "keeps its model until it is unpinned"
	}
	_, err = fmt.Fprintf(w, "%s: %s; %s\n", client, describeModel(c, ""), state)
	return err
}

func describeReadings(c live.ClientStatus, at live.Site, now time.Time) string {
	if c.Newest == 0 {
		return "no readings"
	}
	age := now.Sub(time.Unix(c.Newest, 0))
	state := "readings OK"
	switch {
	case len(c.Findings) > 0:
		state = "readings " + strings.ToUpper(strings.Join(c.Findings, ", "))
	case age > 3*at.Step+15*time.Minute:
		state = "readings LATE"
	}
	return state + " to " + clockTime(c.Newest, at, now)
}

// describeReceiving describes a meter that sends messages but has no reading yet.
func describeReceiving(r readings.Receiving, at live.Site, now time.Time) string {
	many := "messages"
	if r.Messages == 1 {
		many = "message"
	}
	form, complete := "15:04", r.Complete.In(at.Zone)
	if complete.YearDay() != now.In(at.Zone).YearDay() {
		form = "2006-01-02 15:04"
	}
	return fmt.Sprintf("receiving (%d %s), first step complete at %s", r.Messages, many, complete.Format(form))
}

// clockTime returns hours and minutes for a time of today, and adds the date for other days.
func clockTime(unix int64, at live.Site, now time.Time) string {
	t := time.Unix(unix, 0).In(at.Zone)
	if age := now.Sub(t); age < 20*time.Hour && age > -time.Hour {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

func describeForecast(c live.ClientStatus, at live.Site) string {
	if c.Forecast == nil {
		return "no forecast"
	}
	return fmt.Sprintf("forecast from %s, %g h", time.Unix(c.Forecast.Cutoff, 0).In(at.Zone).Format("15:04"), (time.Duration(at.H) * at.Step).Hours())
}

// sourceNames contains the displayed names of sources other than models.
var sourceNames = map[issue.Source]string{issue.Median: "MEDIAN OF 28 DAYS", issue.Week: "LAST WEEK", issue.Day: "YESTERDAY", issue.Last: "LAST VALUE", issue.None: "NOTHING"}

// describeModel describes what made the newest forecast. Refused names a model that the client
// rejected because its forecasts would be worse, or is empty.
func describeModel(c live.ClientStatus, refused string) string {
	if c.Forecast == nil {
		return ""
	}
	var text string
	switch name, fallback := sourceNames[c.Source]; {
	case len(c.Members) > 0:
		text = fmt.Sprintf("sum of %d clients", len(c.Members))
	case fallback && c.Source != issue.None && c.Days < 28 && (c.Reason == issue.NoHead || c.Reason == issue.ShortHistory):
		text = fmt.Sprintf("%s: %.0f days of history, about 28 needed for a model of its own", name, c.Days)
	case fallback && refused != "" && (c.Reason == issue.Refused || c.Reason == issue.NoRelease):
		text, refused = fmt.Sprintf("%s: refused %s, which would be worse", name, refused), ""
	case fallback:
		text = fmt.Sprintf("%s: %s", name, c.Reason)
	case c.Forecast.Release.Head != 0:
		text = fmt.Sprintf("model %s (personal layers of %s)", c.Forecast.Release.Release, time.Unix(c.Forecast.Release.Head, 0).UTC().Format(time.DateOnly))
	default:
		text = "model " + c.Forecast.Model
	}
	for _, x := range []struct {
		is   bool
		word string
	}{{c.Pinned, "pinned"}, {c.Drift, "WORSE than before"}, {c.WantsRound, "wants a round"}, {c.Forecast.Release.Stale, "older than 90 days"}} {
		if x.is {
			text += ", " + x.word
		}
	}
	if refused != "" {
		text += "; refused " + refused + ", which would be worse"
	}
	if c.Next != "" {
		text += "; the next forecast is from " + c.Next
	}
	return text
}

func describeScores(c live.ClientStatus, at live.Site) string {
	if c.Scores.Steps == 0 {
		return ""
	}
	text := ""
	if !math.IsNaN(c.Scores.RelativeMAE) {
		text = fmt.Sprintf("error %.2f of last week's  ", c.Scores.RelativeMAE)
	}
	nominal := at.Levels[len(at.Levels)-1] - at.Levels[0]
	return text + fmt.Sprintf("cover %.0f %% of %.0f", 100*c.Scores.Coverage, 100*nominal)
}
