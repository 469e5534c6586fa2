package fleet

import (
	"context"
	"fmt"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/bench"
	"loadstar/rig/fleetload"
)

// AgentsConfig selects the server for which simulated agents work.
type AgentsConfig struct {
	Server   string // https address
	Operator string // folder with an operator's certificate
	Agents   int
	Clients  int    // clients of each agent
	Prefix   string // prefix of the clients' names
}

// Agents makes simulated agents join a running server, calls ready, and keeps the agents
// busy until ctx ends. They report invented errors and problems, so that a dashboard has
// something to show.
func Agents(ctx context.Context, c AgentsConfig, ready func(), progress bench.Progress) error {
	if c.Agents < 1 || c.Agents > maxAgents || c.Clients < 1 {
		return &UsageError{fmt.Errorf("--agents must be 1 to %d, and --clients at least 1", maxAgents)}
	}
	if err := openFiles(c.Agents); err != nil {
		return err
	}
	trusted, err := mtls.ReadFolder(c.Operator)
	if err != nil {
		return err
	}
	operator := v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(trusted.TLS())), c.Server)
	f, err := join(ctx, operator, fleetload.Config{Server: c.Server, Root: trusted.Root, Agents: c.Agents, Clients: c.Clients, Prefix: c.Prefix, Lively: true}, progress)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Connect(ctx); err != nil {
		return err
	}
	f.Go()
	ready()
	<-ctx.Done()
	return nil
}
