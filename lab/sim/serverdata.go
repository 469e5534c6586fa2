package sim

import (
	"fmt"

	"loadstar/fed/client"
)

// fingerprint identifies the data of a run.
func (c *Config) fingerprint() string {
	if c.ServerData == nil {
		return c.Dataset.Fingerprint()
	}
	return c.Dataset.Fingerprint() + "; on the server: " + c.ServerData.Fingerprint()
}

// newServerData returns the server's data: that of the clients whom the plan's share has
// chosen, or the dataset of its own that the server has.
func (s *simulation) newServerData() (*client.ServerData, error) {
	own := windowsOf(s.fleet.own)
	if s.ServerData != nil {
		var err error
		if own, err = s.setup.ServerExamples(s.ServerData, s.fleet.ranges); err != nil {
			return nil, fmt.Errorf("the server's data does not fit the plan: %w", err)
		}
		if len(own) == 0 {
			return nil, fmt.Errorf("the server's data has no complete training example")
		}
	}
	return s.setup.NewServerData(s.Kernel, own)
}
