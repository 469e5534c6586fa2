package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server"
	"loadstar/server/web"
)

// fleet is the server, as an operator sees it.
type fleet struct {
	v1.OperatorServiceClient
	address string // address for agents
	page    string // address of the dashboard
}

// pollEvery is the time between two check-ins of an agent. The usual interval of a second would
// take up most of a round in the demo.
const pollEvery = 100 * time.Millisecond

// startServer starts a server with a ledger and weights in a folder, and returns when
// it is ready. The server stops when ctx ends, and then closes done.
func startServer(ctx context.Context, dir string, c Config, links []web.Link, failed chan<- error) (f *fleet, done <-chan struct{}, err error) {
	ready, ended := make(chan string, 1), make(chan struct{})
	page, err := freePort(c.Port)
	if err != nil {
		return nil, nil, err
	}
	f = &fleet{}
	began := make(chan error, 1)
	go func() {
		defer close(ended)
		err := server.Run(ctx, server.Config{
			Dir: dir, Roles: server.Roles(), Listen: "127.0.0.1:0", Hosts: []string{"localhost", "127.0.0.1"},
			AgentClients: 10_000, Certificates: 7 * 24 * time.Hour, Grace: 90 * 24 * time.Hour, Lease: 10 * time.Minute, Lead: 10 * time.Second,
			Poll: pollEvery, MaxPoll: time.Minute, Rate: 500, Log: c.Log, Version: c.Version, Ready: func(address string) { ready <- address },
			Web: &web.Config{
				Listen: page, Notice: "A demo with GENERATED data. Readings and forecasts are on the pages of the agents:", Links: links, Ready: func(url string) { f.page = url },
			},
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the server has ended")
		}
		began <- err
		select {
		case failed <- err:
		default: // the channel already contains an earlier error
		}
	}()
	select {
	case err := <-began:
		return nil, ended, fmt.Errorf("cannot start the server: %w", err)
	case address := <-ready:
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, ended, err
		}
		f.address = "https://localhost:" + port
	}
	operator, err := mtls.ReadFolder(filepath.Join(dir, "operator"))
	if err != nil {
		return nil, ended, err
	}
	f.OperatorServiceClient = v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(operator.TLS())), f.address)
	return f, ended, nil
}

// freePort returns an address with a free port: the given port or one of the next hundred.
func freePort(port int) (string, error) {
	for p := port; p <= min(port+100, 65535); p++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		address = l.Addr().String() // port 0 lets the system choose a port
		return address, l.Close()
	}
	return "", fmt.Errorf("the ports from %d on are all in use; choose another one with --port", port)
}

// login returns the address of the page with a code that opens a session.
func (f *fleet) login(ctx context.Context) (string, error) {
	r, err := f.CreateLogin(ctx, &v1.CreateLoginRequest{TtlSeconds: 60 * 60})
	if err != nil {
		return "", fmt.Errorf("cannot create a login link: %w", err)
	}
	return strings.TrimSuffix(f.page, "/") + "/#/login?code=" + r.Code, nil
}

// Receipts contains the ledger's figures for the run's updates.
type Receipts struct {
	// Asked is the number of requested updates, and Counted the number of receipts.
	// Late updates arrived after their round had closed.
	Asked   int64 `json:"asked"`
	Counted int64 `json:"counted"`
	Late    int64 `json:"late"`
	Lost    int64 `json:"lost"`
	// Twice is the number of surplus receipts, beyond one for each client and round.
	Twice int64 `json:"twice"`
	// Missing is the number of counted updates without a receipt.
	Missing int64 `json:"missing"`
}

// receipts reads the receipts of a run and compares them with its rounds. It also records in k
// what happened to the killed agent.
func (f *fleet) receipts(ctx context.Context, run string, rounds []*v1.Round, k *Killed, clients []string) (r Receipts, err error) {
	for _, x := range rounds {
		r.Asked, r.Counted, r.Late, r.Lost = r.Asked+x.Asked, r.Counted+x.Counted, r.Late+x.Late, r.Lost+x.Lost
		seen := map[string]bool{}
		for after, more := "", true; more; {
			page, err := f.ListTurns(ctx, &v1.ListTurnsRequest{Run: run, Round: x.Round, After: after, Limit: 1000})
			if err != nil {
				return r, fmt.Errorf("cannot read the receipts of round %d: %w", x.Round+1, err)
			}
			more = len(page.Turns) > 0
			for _, t := range page.Turns {
				after = t.Client
				if t.State != "counted" {
					continue
				}
				if seen[t.Client] {
					r.Twice++
				}
				seen[t.Client] = true
			}
		}
		r.Missing += max(x.Counted-int64(len(seen)), 0)
		r.Twice += max(int64(len(seen))-x.Counted, 0)
		for _, c := range clients {
			switch {
			case k.Round == 0 || x.Round < int64(k.Round)-1: // before the agent was killed
			case seen[c]:
				k.CountedAfter++
			default:
				k.Missed++
			}
		}
	}
	return r, nil
}
