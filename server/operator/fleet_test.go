package operator

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series/quality"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// town is a ledger with four agents. a works, b is quiet and has synthetic readings, c's
// certificate ends soon, and d is revoked. A run has asked all clients, and has counted only
// a's even-numbered ones.
type town struct {
	*fixture
	run   string
	codes []string // codes of findings: a0 and a1 have the first, and a0 also has the second
	today int64
}

func newTown(d *fixture) *town {
	d.Helper()
	ctx, now := d.Context(), time.Now()
	join := func(id string, seen, expires time.Time, a directory.Announcement) {
		d.Helper()
		testkit.Must(d, d.ledger.Directory.AddToken(ctx, []byte(id), directory.Token{Uses: 1, Expires: now.Add(time.Hour)}, "test", time.Now()))
		testkit.Must(d, d.ledger.Directory.Join(ctx, []byte(id), directory.Agent{ID: id, Name: "name of " + id, Expires: expires}, seen))
		a.Agent, a.Step, a.Most, a.Inputs = id, 15*time.Minute, 1000, []string{"load", "temperature"}
		_, err := d.ledger.Directory.Announce(ctx, a, seen)
		testkit.Must(d, err)
	}
	year, skew := now.Add(365*24*time.Hour), 1500*time.Millisecond
	join("a", now, year, directory.Announcement{Clients: []string{"a0", "a1", "a2", "a3"}, Version: "1.2.3", Skew: &skew})
	join("b", now.Add(-time.Hour), year, directory.Announcement{Clients: []string{"b0"}, Generated: true})
	join("c", now, now.Add(time.Hour), directory.Announcement{Clients: []string{"c0", "c1"}})
	join("d", now, year, directory.Announcement{Clients: []string{"d0"}})
	testkit.Must(d, d.ledger.Directory.RevokeAgent(ctx, "d", "user anna via web", now))

	t := &town{fixture: d, today: directory.Today(now)}
	for _, c := range quality.Codes()[:2] {
		t.codes = append(t.codes, string(c.Code))
	}
	report := func(client string, day int64, findings ...string) {
		d.Helper()
		m, err := proto.Marshal(&v1.ClientReport{Client: client, Day: day, Findings: findings})
		testkit.Must(d, err)
		testkit.Must(d, d.ledger.Reports.AddReports(ctx, client[:1], []directory.Report{{Client: client, Day: day, Message: m, RelativeMAE: 0.8, Coverage: math.NaN(), Fallback: math.NaN(), Findings: findings}}, false, now))
	}
	report("a2", t.today-1, t.codes[0])
	report("a0", t.today, t.codes...)
	report("a1", t.today, t.codes[0])
	report("a2", t.today) // the problem is over

	s, err := d.StartRun(ctx, &v1.StartRunRequest{Plan: plan})
	testkit.Must(d, err)
	t.run = s.Run
	lead, err := d.ledger.Lead(ctx, "test", time.Hour, now)
	testkit.Must(d, err)
	testkit.Must(d, d.ledger.Drive(ctx, lead, t.run, func(x *ledger.Drive) error {
		n, err := x.Begin(ledger.Run{Plan: plan}, ledger.Version{Weights: "w0"}, directory.Filter{}, now)
		if err != nil {
			return err
		}
		var members []int64
		for i := range n {
			members = append(members, i)
		}
		if gone, _, err := x.Ask(ledger.Asking{Round: 0, Version: 0, Members: members, Until: now.Add(time.Hour)}); err != nil || len(gone) > 0 {
			return fmt.Errorf("%v are gone: %w", gone, err)
		}
		return x.Save("{}", ledger.Round{Opened: now, Asked: n})
	}))
	arrivals := []ledger.Arrival{{Agent: "a", Bytes: 100, Shares: []ledger.Share{
		{Client: "a0", Examples: 10, Steps: 3, TrainLoss: 0.5}, {Client: "a2", Examples: 10, Steps: 3, TrainLoss: 0.5},
	}}}
	counted, err := d.ledger.Counter.Count(ctx, t.run, arrivals, func([]int) ([]ledger.Partial, []ledger.Single, error) {
		return []ledger.Partial{{Numbers: []byte{1}}}, nil, nil
	})
	testkit.Must(d, err)
	if len(counted) != 1 {
		d.Fatal("nothing was counted")
	}
	return t
}

func TestEmptyFleet(t *testing.T) {
	onBoth(t, func(d *fixture) {
		if f, err := d.GetFleet(d.Context(), &v1.GetFleetRequest{}); err != nil || f.Agents != 0 || f.Run != nil || f.Serving != nil {
			d.Errorf("nobody: %v, %v", f, err)
		}
	})
}

func TestGetFleet(t *testing.T) {
	onBoth(t, func(x *fixture) {
		d := newTown(x)
		f, err := d.GetFleet(d.Context(), &v1.GetFleetRequest{})
		testkit.Must(d, err)
		if f.Agents != 3 || f.Clients != 7 || f.Quiet != 1 || f.Expiring != 1 || f.Revoked != 1 || !f.Generated || f.Hub != "" {
			d.Errorf("%v", f)
		}
		if f.Run.GetId() != d.run || f.Run.GetState() != "running" || f.Run.GetClients() != 7 || f.Run.GetAlgorithm() != "fedavg" || f.Run.GetRounds() != 7 || f.Run.GetWeights() != "w0" {
			d.Errorf("%v", f.Run)
		}
		if f.Serving.GetDay() != d.today || f.Serving.GetTotal() != 3 || f.Serving.Coverage != nil || f.Serving.RelativeMae == nil {
			d.Errorf("%v", f.Serving)
		}
	})
}

func TestListAgents(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		var all []*v1.Agent
		for after := ""; ; {
			s, err := d.ListAgents(d.Context(), &v1.ListAgentsRequest{After: after, Limit: 3})
			testkit.Must(d, err)
			all = append(all, s.Agents...)
			if len(s.Agents) < 3 {
				break
			}
			after = s.Agents[2].Id
		}
		if len(all) != 4 {
			d.Fatalf("%v", all)
		}
		for i, want := range []*v1.Agent{{Id: "a", Clients: 4, Version: "1.2.3", Findings: 2}, {Id: "b", Quiet: true, Clients: 1, Generated: true}, {Id: "c", Clients: 2}, {Id: "d", Revoked: true}} {
			got := all[i]
			if got.Id != want.Id || got.Name != "name of "+want.Id || got.Quiet != want.Quiet || got.Revoked != want.Revoked || got.Generated != want.Generated || got.Version != want.Version || got.Findings != want.Findings || got.Joined == 0 || got.Seen == 0 || got.Expires == 0 {
				d.Errorf("%v, want %v", got, want)
			}
			if want.Clients != 0 && got.Clients != want.Clients {
				d.Errorf("%s has %d clients, want %d", got.Id, got.Clients, want.Clients)
			}
			if (got.SkewMs != nil) != (i == 0) || i == 0 && *got.SkewMs != 1500 {
				d.Errorf("the clock of %s differs by %v ms", got.Id, got.SkewMs)
			}
		}
		for name, want := range map[string]string{"name of b": "b", "c": "c", "name": "abcd", "zzz": "", "%": "", "_": ""} {
			s, err := d.ListAgents(d.Context(), &v1.ListAgentsRequest{Name: name})
			testkit.Must(d, err)
			got := ""
			for _, a := range s.Agents {
				got += a.Id
			}
			if got != want {
				d.Errorf("agents %q: %q, want %q", name, got, want)
			}
		}
	})
}

func TestListClientsFilters(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		for _, x := range []struct {
			q    *v1.ListClientsRequest
			want string
			next string
		}{
			{&v1.ListClientsRequest{}, "a0 a1 a2 a3 b0 c0 c1 d0", ""},
			{&v1.ListClientsRequest{Limit: 8}, "a0 a1 a2 a3 b0 c0 c1 d0", ""},
			{&v1.ListClientsRequest{Limit: 7}, "a0 a1 a2 a3 b0 c0 c1", "c1"},
			{&v1.ListClientsRequest{After: "c1"}, "d0", ""},
			{&v1.ListClientsRequest{Name: "a", Limit: 2}, "a0 a1", "a1"},
			{&v1.ListClientsRequest{Name: "a", Limit: 2, After: "a1"}, "a2 a3", ""},
			{&v1.ListClientsRequest{Name: "c_"}, "", ""},
			{&v1.ListClientsRequest{Name: "%"}, "", ""},
			{&v1.ListClientsRequest{Agent: "c"}, "c0 c1", ""},
			{&v1.ListClientsRequest{Agent: "c", Name: "a"}, "", ""},
		} {
			s, err := d.ListClients(d.Context(), x.q)
			testkit.Must(d, err)
			var names []string
			for _, c := range s.Clients {
				names = append(names, c.Name)
			}
			if got := strings.Join(names, " "); got != x.want || s.Next != x.next || s.Total != 7 || s.Agents != 3 {
				d.Errorf("%v: %q, next %q, %d clients of %d agents; want %q, next %q", x.q, got, s.Next, s.Total, s.Agents, x.want, x.next)
			}
		}
	})
}

func TestGetClient(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		get := func(name string) *v1.GetClientResponse {
			d.Helper()
			s, err := d.GetClient(d.Context(), &v1.GetClientRequest{Client: name})
			testkit.Must(d, err)
			return s
		}
		x := get("a0")
		if c := x.Client; c.Name != "a0" || c.Agent != "a" || c.StepSeconds != 900 || !slices.Equal(c.Inputs, []string{"load", "temperature"}) || c.Revoked || c.Reported != d.today {
			d.Errorf("%v", c)
		}
		if x.Agent.GetId() != "a" || x.Agent.GetVersion() != "1.2.3" || x.Agent.GetClients() != 4 || x.Agent.GetFindings() != 2 {
			d.Errorf("%v", x.Agent)
		}
		// A finding that can indicate an empty house is counted per agent, but not shown for
		// single clients.
		if text := x.Client.String(); strings.Contains(text, d.codes[0]) || strings.Contains(text, "0.") {
			d.Errorf("the answer about a client has details of its report: %s", text)
		}
		if len(x.Turns) != 1 {
			d.Fatalf("%v", x.Turns)
		}
		if u := x.Turns[0]; u.State != "counted" || u.Run != d.run || u.Round != 0 || u.Client != "a0" || u.Agent != "a" || u.Examples != 10 || u.Steps != 3 || u.Counted == 0 {
			d.Errorf("%v", u)
		}
		if x = get("b0"); !x.Agent.Quiet || x.Client.Reported != 0 || len(x.Turns) != 1 || x.Turns[0].State != "asked" || x.Turns[0].Counted != 0 {
			d.Errorf("%v", x)
		}
		if x = get("d0"); !x.Client.Revoked || !x.Agent.Revoked || x.Agent.Quiet || len(x.Turns) != 0 {
			d.Errorf("%v", x)
		}
		for _, name := range []string{"", "none", "a", "a%"} {
			_, err := d.GetClient(d.Context(), &v1.GetClientRequest{Client: name})
			d.code(name, err, connect.CodeNotFound)
		}
	})
}

func TestListTurns(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		got := ""
		for after := ""; ; {
			s, err := d.ListTurns(d.Context(), &v1.ListTurnsRequest{Run: d.run, After: after, Limit: 3})
			testkit.Must(d, err)
			for _, u := range s.Turns {
				got += u.Client + " " + u.Agent + " " + u.State + "\n"
			}
			if len(s.Turns) < 3 {
				break
			}
			after = s.Turns[2].Client
		}
		if want := "a0 a counted\na1 a asked\na2 a counted\na3 a asked\nb0 b asked\nc0 c asked\nc1 c asked\n"; got != want {
			d.Errorf("%s, want %s", got, want)
		}
		if s, err := d.ListTurns(d.Context(), &v1.ListTurnsRequest{Run: d.run, Round: 1}); err != nil || len(s.Turns) != 0 {
			d.Errorf("a round that was not asked: %v, %v", s, err)
		}
		_, err := d.ListTurns(d.Context(), &v1.ListTurnsRequest{Run: "none"})
		d.code("an unknown run", err, connect.CodeNotFound)
	})
}

func TestListFindings(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		s, err := d.ListFindings(d.Context(), &v1.ListFindingsRequest{})
		testkit.Must(d, err)
		known := quality.Codes()
		want := []*v1.Finding{
			{Code: d.codes[0], Clients: 2, Title: known[0].Meaning, Advice: known[0].Advice},
			{Code: d.codes[1], Clients: 1, Title: known[1].Meaning, Advice: known[1].Advice},
			{Code: d.codes[0], Day: d.today, Clients: 2, Title: known[0].Meaning, Advice: known[0].Advice},
			{Code: d.codes[1], Day: d.today, Clients: 1, Title: known[1].Meaning, Advice: known[1].Advice},
			{Code: d.codes[0], Day: d.today - 1, Clients: 1, Title: known[0].Meaning, Advice: known[0].Advice},
		}
		if s.Day != d.today || s.Reported != 3 || !slices.EqualFunc(s.Findings, want, func(a, b *v1.Finding) bool { return proto.Equal(a, b) }) {
			d.Errorf("%v, want %v", s, want)
		}
		if s, err = d.ListFindings(d.Context(), &v1.ListFindingsRequest{Days: 1}); err != nil || len(s.Findings) != 4 {
			d.Errorf("one day: %v, %v", s, err)
		}
		for _, days := range []int32{-1, 91, math.MaxInt32} {
			_, err := d.ListFindings(d.Context(), &v1.ListFindingsRequest{Days: days})
			d.code(fmt.Sprint(days, " days"), err, connect.CodeInvalidArgument)
		}
	})
}

func TestListAuditFilters(t *testing.T) {
	onBoth(t, func(d *fixture) {
		begin := time.Now().Add(time.Hour) // after all events of the fixture
		for i, actor := range []string{"user anna via web", "user anna via certificate", "operator anna", "agent anna", "user bert via web", "user annabel via web"} {
			for _, action := range []string{"start run", "stop run"} {
				testkit.Must(d, d.ledger.Events.AddEvent(d.Context(), directory.Event{At: begin.Add(time.Duration(i) * time.Second), Actor: actor, Action: action, Subject: fmt.Sprint(i)}))
			}
		}
		for _, x := range []struct {
			q    *v1.ListAuditRequest
			want string // subjects, newest first
		}{
			{&v1.ListAuditRequest{Actor: "anna"}, "33221100"},
			{&v1.ListAuditRequest{Actor: "anna", Action: "stop run"}, "3210"},
			{&v1.ListAuditRequest{Actor: "user anna via web"}, "00"},
			{&v1.ListAuditRequest{Actor: "bert", Action: "start run"}, "4"},
			{&v1.ListAuditRequest{Action: "start run"}, "543210"},
			{&v1.ListAuditRequest{Action: "start"}, ""},
			{&v1.ListAuditRequest{Actor: "ann%"}, ""},
			{&v1.ListAuditRequest{Actor: "anna' OR '1'='1"}, ""},
		} {
			// Pages of different sizes give the same result.
			for _, limit := range []int32{0, 1, 3} {
				got, before := "", ""
				for {
					q := proto.CloneOf(x.q)
					q.Limit, q.Before = limit, before
					s, err := d.ListAudit(d.Context(), q)
					testkit.Must(d, err)
					for _, e := range s.Events {
						got += e.Subject
						before = e.Id
					}
					if len(s.Events) == 0 {
						break
					}
				}
				if got != x.want {
					d.Errorf("%v in pages of %d: %q, want %q", x.q, limit, got, x.want)
				}
			}
		}
	})
}
