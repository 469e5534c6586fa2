package sim

import (
	"fmt"

	"loadstar/fed/client"
	"loadstar/series"
)

// fingerprint identifies the data of a run.
func (c *Config) fingerprint() string {
	if c.ServerData == nil {
		return c.Dataset.Fingerprint()
	}
	return c.Dataset.Fingerprint() + "; on the server: " + c.ServerData.Fingerprint()
}

// newServerData returns the server's data, or nil if the aggregator needs none.
func (s *simulation) newServerData() (*client.ServerData, error) {
	own, err := s.serverExamples()
	if err != nil {
		return nil, err
	}
	return s.setup.NewServerData(s.Kernel, own)
}

// serverExamples returns the examples of the server's own dataset, or of the clients whose data
// is on the server.
func (s *simulation) serverExamples() ([]series.Examples, error) {
	if s.ServerData == nil {
		return windowsOf(s.fleet.own), nil
	}
	own, err := s.setup.ServerExamples(s.ServerData, s.fleet.ranges)
	if err != nil {
		return nil, fmt.Errorf("the server's data does not fit the plan: %w", err)
	}
	if len(own) == 0 {
		return nil, fmt.Errorf("the server's data has no complete training example")
	}
	return own, nil
}
