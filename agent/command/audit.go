package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"text/tabwriter"
	"time"

	"loadstar/agent"
	"loadstar/agent/audit"
	"loadstar/agent/config"
	"loadstar/agent/identity"
	"loadstar/internal/textfmt"
	"loadstar/nn/kernel"
)

// Audit attacks the newest updates of a client, or of every client if none is named, and prints
// what they reveal. It asks the running agent, or reads the folder if no agent is running.
func Audit(ctx context.Context, o Options, client string, asJSON bool) error {
	c, err := config.Read(o.Config, os.Environ())
	if err != nil {
		return err
	}
	show := func(name string, ask func(string) (*audit.Report, error)) error {
		r, err := ask(name)
		switch {
		case err != nil:
			return fmt.Errorf("client %s: %w", name, err)
		case asJSON:
			return json.NewEncoder(plain{o.Out}).Encode(r)
		}
		return writeAudit(plain{o.Out}, r)
	}
	names, running, err := clientsOf(ctx, c)
	if err != nil {
		return err
	}
	each := func(names []string, ask func(string) (*audit.Report, error)) error {
		if client != "" {
			return show(client, ask)
		}
		var all []error
		for _, name := range names {
			all = append(all, show(name, ask))
		}
		return errors.Join(all...)
	}
	if running {
		return each(names, func(name string) (*audit.Report, error) { return askAudit(ctx, c, name) })
	}
	collectOften()
	return stopped(c, o, func(x *Agent) error {
		i, err := identity.Open(c.Dir)
		if errors.Is(err, identity.ErrNotJoined) {
			return audit.ErrIdle
		} else if err != nil {
			return err
		}
		k, err := kernel.Default()
		if err != nil {
			return err
		}
		names, err := x.clients()
		if err != nil {
			return err
		}
		return each(names, func(name string) (*audit.Report, error) {
			return agent.Audit(ctx, x.agent(i, k), name, func(int, int) {})
		})
	})
}

// clientsOf asks the running agent for its clients. Running is false if no agent is running.
func clientsOf(ctx context.Context, c *config.Config) (names []string, running bool, err error) {
	if c.HTTP.Listen == "" {
		return nil, false, nil
	}
	var list struct {
		Clients []struct {
			Client  string
			Members []string
		}
	}
	running, err = ofAgent(ctx, c, http.MethodGet, "/v1/clients", &list)
	for _, x := range list.Clients {
		if x.Members == nil {
			names = append(names, x.Client)
		}
	}
	return names, running, err
}

// ofAgent queries the running agent and decodes its answer.
func ofAgent(ctx context.Context, c *config.Config, method, path string, answer any) (running bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	code, text, err := request(ctx, c, method, path)
	switch {
	case err != nil || code == 0:
		return false, err
	case code != http.StatusOK && code != http.StatusAccepted:
		var problem struct{ Detail string }
		if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
			return true, errors.New(printable(problem.Detail))
		}
		return true, refusal(c, code, text)
	}
	return true, json.Unmarshal(text, answer)
}

// askAudit makes the running agent audit a client, and waits for the report.
func askAudit(ctx context.Context, c *config.Config, client string) (*audit.Report, error) {
	var s audit.Status
	path := "/v1/audit/" + url.PathEscape(client)
	for method := http.MethodPost; ; method = http.MethodGet {
		running, err := ofAgent(ctx, c, method, path, &s)
		switch {
		case err != nil:
			return nil, err
		case !running:
			return nil, errors.New("the agent has ended")
		case s.State == audit.Done && s.Report != nil:
			return s.Report, nil
		case s.State != audit.Running:
			return nil, errors.New(printable(s.Error))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// attackNames describes what the attacks guess.
var attackNames = map[string]string{audit.Profile: "mean load by hour of the day", audit.Readings: "single readings"}

// writeAudit writes a report as a table. For each kind of number, it adds the curves of the
// attack on the largest number of updates.
func writeAudit(w io.Writer, r *audit.Report) error {
	state := "counted by the server"
	if r.Pending {
		state = "not counted yet"
	}
	fmt.Fprintf(w, `%s: updates of run %s, the newest of round %d (%s)

An attacker has the updates, the plan, the weights, the personal layers and all
readings except those that it guesses. Correlation of its guesses with the
truth:

`, r.Client, r.Run, r.Round, state)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "attack\tupdates\tit finds them\tcorrelation\twithout the updates\twith this agent's secret")
	for _, a := range r.Attacks {
		fmt.Fprintf(t, "%s\t%d\t%s\t%.2f\t%.2f\t%.2f\n", attackNames[a.Name], a.Updates, a.Meaning, a.Guess.Correlation, a.Empty.Correlation, a.Known.Correlation)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, a := range r.Attacks {
		if i+1 < len(r.Attacks) && r.Attacks[i+1].Name == a.Name {
			continue
		}
		span := ""
		if n := len(a.Labels); n > 0 {
			span = a.Labels[0] + " to " + a.Labels[n-1]
		}
		fmt.Fprintf(w, "\n%s, %s\n  truth        %s\n  guess        %s\n  with secret  %s\n", attackNames[a.Name], span, textfmt.Sparkline(a.Truth, 0), textfmt.Sparkline(a.Guess.Load, 0), textfmt.Sparkline(a.Known.Load, 0))
	}
	_, err := fmt.Fprintf(w, "\nThis is not a proof: a server that chooses plan and weights can learn more. See\ndocs/privacy.md. None of this leaves the machine, which stores %.1f MB of weights\nfor audits.\n", float64(r.Stored)/1e6)
	return err
}
