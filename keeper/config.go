package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"loadstar/fed/member"
	"loadstar/internal/config"
	v1 "loadstar/proto/loadstar/v1"
)

// ConfigName is the name of the file in a keeper's folder.
const ConfigName = "keeper.yaml"

// Config is the content of keeper.yaml. The tag about describes a key for users.
type Config struct {
	Fleet   string          `yaml:"fleet" about:"name of the fleet whose members' keys the keeper holds"`
	Listen  string          `yaml:"listen" about:"address for the server"`
	Servers []string        `yaml:"servers" about:"identities of the servers that may call, sha256:…; 'loadstar serve' prints its own"`
	Least   int64           `yaml:"least" about:"minimum number of distinct agents in a sum"`
	Quorum  float64         `yaml:"quorum" about:"minimum share of the members of each cell in a sum"`
	Cell    int64           `yaml:"cell" about:"members of a cell on average; a fleet below twice this number is one cell"`
	Age     config.Duration `yaml:"age" about:"time from a member's enrolment to its first sum"`
	Members string          `yaml:"members" about:"invited: a member needs a code from 'loadstar keeper invite'; server: the server names the members"`
	Plans   string          `yaml:"plans" about:"any, or approved: only plans that 'loadstar keeper approve' has named"`
	Daily   int64           `yaml:"daily" about:"maximum number of rounds released in a day; 0 means no limit"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Fleet: "fleet", Listen: "0.0.0.0:7447", Least: 20, Quorum: 0.7, Cell: 100, Age: config.Duration(24 * time.Hour), Members: "invited", Plans: "any", Daily: 1000,
	}
}

// ReadConfig reads the settings in a keeper's folder.
func ReadConfig(dir string) (c Config, err error) {
	path := filepath.Join(dir, ConfigName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("%s has no keeper: create one with 'loadstar keeper init'", dir)
	}
	if err != nil {
		return c, err
	}
	if c, err = ParseConfig(data); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return c, err
}

// ParseConfig decodes and checks settings.
func ParseConfig(data []byte) (c Config, err error) {
	c = DefaultConfig()
	if err := config.Decode(data, &c); err != nil {
		return c, err
	}
	if c.Members != "invited" && c.Members != "server" {
		return c, fmt.Errorf("members: got %q, want invited or server", c.Members)
	}
	if c.Plans != "any" && c.Plans != "approved" {
		return c, fmt.Errorf("plans: got %q, want any or approved", c.Plans)
	}
	if !(c.Quorum >= 0 && c.Quorum <= 1) || c.Daily < 0 {
		return c, fmt.Errorf("quorum: got %g, want 0 to 1; daily: got %d, want at least 0", c.Quorum, c.Daily)
	}
	if _, err := c.Pins(); err != nil {
		return c, err
	}
	return c, member.CheckRules(c.Options().Rules)
}

// Pins returns the pins of the servers that may call the keeper.
func (c *Config) Pins() (pins []member.Pin, err error) {
	for _, s := range c.Servers {
		p, err := member.ParsePin(s)
		if err != nil {
			return nil, fmt.Errorf("servers: %w", err)
		}
		pins = append(pins, p)
	}
	return pins, nil
}

// Options returns the options for [Open].
func (c *Config) Options() Options {
	return Options{
		Fleet: c.Fleet, Approved: c.Plans == "approved", Daily: c.Daily,
		Rules: &v1.KeeperRules{Least: c.Least, Quorum: int64(c.Quorum*1000 + 0.5), Cell: c.Cell, Age: int64(time.Duration(c.Age) / time.Second), Invited: c.Members == "invited"},
	}
}

// SetAge sets the value of the key age from a string, which may be in days.
func (c *Config) SetAge(text string) error {
	d, err := config.ParseDuration(text)
	c.Age = config.Duration(d)
	return err
}
