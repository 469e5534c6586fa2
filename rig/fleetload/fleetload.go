// Package fleetload is a load generator that runs thousands of agents in one process. The
// agents do not train, but each looks like a real agent to the server. It has its own key,
// certificate and connection, calls on schedule, gets the weights of every task, and
// returns random numbers that the server accepts as an update.
package fleetload

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
)

// Config configures a fleet.
type Config struct {
	// Server is an https address. Root is the root of the server's certificate, and Token
	// is the join token that all agents use.
	Server string
	Root   *x509.Certificate
	Token  mtls.JoinToken
	// Agents is the number of agents, and Clients the number of clients per agent, where 0
	// means one.
	Agents, Clients int
	// Prefix is the prefix of the clients' names; empty means "virtual".
	Prefix string
	// Inputs are the inputs that agents announce in addition to load and calendar features.
	Inputs []string
	// Lively agents also send the data that a dashboard shows. They evaluate in every round
	// and report once a day. All values are invented.
	Lively bool
	// Short means that an agent closes its connection after each contact, like an agent whose
	// next contact is much later.
	Short bool
	// Pace is the number of results that all agents together send in a second, as if they trained.
	// 0 means that each agent sends its result at once.
	Pace float64
}

// Fleet is a set of agents that have joined. Its methods are safe for concurrent use,
// except Connect, which may be called only while the fleet rests.
type Fleet struct {
	Config
	agents  []*agent
	numbers numbers
	private private
	counts  counts

	begin, rest chan chan struct{} // requests to the pacing goroutine
	back        chan contacted
	stop        context.CancelFunc
	stopped     chan struct{}

	slots struct {
		sync.Mutex
		next time.Time // when the next result may be sent
	}
}

const (
	// joiners and dialers limit how many agents join, and connect, concurrently.
	joiners, dialers = 8, 32
	// patience is the timeout of a call.
	patience = 2 * time.Minute
)

// Join makes all agents join the server and returns the fleet, which rests until Go is
// called. After each agent, Join calls joined with the number of agents that have joined so
// far.
func Join(ctx context.Context, c Config, joined func(n int)) (*Fleet, error) {
	f := &Fleet{
		Config: c, agents: make([]*agent, c.Agents),
		begin: make(chan chan struct{}), rest: make(chan chan struct{}), back: make(chan contacted, c.Agents), stopped: make(chan struct{}),
	}
	at, err := url.Parse(c.Server)
	if err != nil {
		return nil, err
	}
	// The server identifies an agent by its certificate, so agents can share a
	// connection for joining.
	stranger := mtls.Client(mtls.Transport(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(c.Root)}))
	defer stranger.CloseIdleConnections()
	service := v1.NewAgentServiceClient(stranger, c.Server, protocol.Client())
	var (
		mu sync.Mutex
		n  int
	)
	if err := f.each(ctx, joiners, func(ctx context.Context, i int) (err error) {
		if f.agents[i], err = f.join(ctx, service, at, i); err == nil {
			mu.Lock()
			defer mu.Unlock()
			n++
			joined(n)
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("joining: %w", err)
	}
	ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	go f.pace(ctx)
	return f, nil
}

// each calls do for every agent's index. At most atOnce calls run at the same time.
func (f *Fleet) each(ctx context.Context, atOnce int, do func(ctx context.Context, i int) error) error {
	group, until := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range f.agents {
		if until.Err() != nil {
			break
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(until, patience)
			defer cancel()
			return do(ctx, i)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

func (f *Fleet) join(ctx context.Context, service v1.AgentServiceClient, at *url.URL, i int) (*agent, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	a := &agent{fleet: f, no: i}
	for k := range max(f.Clients, 1) {
		a.clients = append(a.clients, fmt.Sprintf("%s-%06d", cmp.Or(f.Prefix, "virtual"), i*max(f.Clients, 1)+k))
	}
	answer, err := service.Join(ctx, &v1.JoinRequest{Secret: f.Token.Secret(), Csr: csr, Name: a.clients[0]})
	if err != nil {
		return nil, err
	}
	if len(answer.Certificates) == 0 {
		return nil, errors.New("the server sent no certificate")
	}
	c := mtls.Credentials{Key: key, Root: f.Root}
	if c.Leaf, err = x509.ParseCertificate(answer.Certificates[0]); err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(c.Leaf.URIs) != 1 {
		return nil, errors.New("the certificate does not name its agent")
	}
	a.id = strings.TrimPrefix(c.Leaf.URIs[0].Path, "/")
	a.line = line{server: at, config: c.TLS(), from: source(at, i), bytes: &f.counts.bytes}
	a.line.config.ServerName = at.Hostname()
	return a, nil
}

// Connect opens a new connection for every agent and announces its client if necessary. Agents
// enrol with the keepers of the server, so that they can take part in private runs.
// It discards the agents' pending turns.
func (f *Fleet) Connect(ctx context.Context) error {
	f.counts.present.Store(0)
	err := f.each(ctx, dialers, func(ctx context.Context, i int) error {
		a := f.agents[i]
		a.line.close()
		a.todo, a.pushed, a.told, a.present, a.session = nil, nil, nil, false, ""
		if f.Short {
			defer a.line.close()
		}
		if a.announced {
			return a.line.call(ctx, v1.AgentServiceExchangeProcedure, &v1.ExchangeRequest{}, &v1.ExchangeResponse{}) // the server assigns its tasks again
		}
		r := &v1.AnnounceResponse{}
		err := a.line.call(ctx, v1.AgentServiceAnnounceProcedure, &v1.AnnounceRequest{
			Clients: a.clients, Inputs: f.Inputs, StepSeconds: 3600, Version: "load", Now: time.Now().UnixMilli(), Generated: true,
		}, r)
		if err == nil && len(r.Refused) > 0 {
			err = fmt.Errorf("the server refused clients %q", r.Refused)
		}
		if err == nil {
			err = a.enrol(ctx, r.Statements)
		}
		a.announced = err == nil
		return err
	})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	return nil
}

// Present returns the number of agents that have checked in since Connect.
func (f *Fleet) Present() int { return int(f.counts.present.Load()) }

// Told is an agent's knowledge about one of its turns: the pushed result and the received
// verdict.
type Told struct {
	Run     string
	Round   int64
	Client  string
	Outcome v1.Outcome // ACCEPTED while there is no verdict; UNSPECIFIED if the answer was lost
}

// Told calls each with what the agents know about the turns for which they pushed results since
// Connect, agent by agent and in chronological order. Later entries for a turn replace earlier
// ones. The fleet must rest.
func (f *Fleet) Told(each func(Told)) {
	for _, a := range f.agents {
		for _, t := range a.told {
			each(t)
		}
	}
}

// Close stops the fleet.
func (f *Fleet) Close() {
	f.stop()
	<-f.stopped
	for _, a := range f.agents {
		a.line.close()
	}
}
