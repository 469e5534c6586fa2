// Package config reads the configuration of a server: server.yaml.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/config"
	"loadstar/server/keepers"
)

// Name is the name of the file in a server's folder.
const Name = "server.yaml"

// Config is the content of server.yaml. The tag about describes a key in the reference and in
// the output of [Config.Print].
type Config struct {
	Dir       string   `yaml:"dir" about:"the server's folder"`
	Roles     []string `yaml:"roles,flow" about:"roles of this process: gateway, coordinator"`
	Listen    string   `yaml:"listen" about:"address for agents and operators"`
	Operators string   `yaml:"operators" about:"separate address for operators, whose connections agents and strangers cannot use up; empty means that operators use the address for agents"`
	Hosts     []string `yaml:"hosts,flow" about:"names and IP addresses of the server, for its certificate"`
	Watch     string   `yaml:"watch" about:"address for /metrics, /healthz, /readyz and /limited; empty to disable"`
	Notify    string   `yaml:"notify" about:"address that is notified when faults begin and end: https://HOST/PATH gets JSON, ntfy:https://HOST/TOPIC gets the format of ntfy; empty to disable"`
	Store     Store    `yaml:"store"`
	Agents    Agents   `yaml:"agents"`
	Limits    Limits   `yaml:"limits"`
	Rounds    Rounds   `yaml:"rounds"`
	Keys      Keys     `yaml:"keys"`
	Region    Region   `yaml:"region"`
	Keepers   []string `yaml:"keepers,flow" about:"keepers that private plans can name, as 'NAME=https://HOST:PORT sha256:IDENTITY'"`
	Web       Web      `yaml:"web"`
	Log       Log      `yaml:"log"`
}

// Store configures where a server stores its data, and for how long.
type Store struct {
	Database     string          `yaml:"database" about:"sqlite:PATH or postgres://…; empty means SQLite in the server's folder"`
	Blobs        string          `yaml:"blobs" about:"folder for weights, or s3://HOST/BUCKET/PREFIX with keys from the environment; empty means a folder in the server's folder"`
	BlobsCA      string          `yaml:"blobs_ca" about:"file with the certificate authorities of the S3 store; empty means the system's authorities"`
	AllowLoss    bool            `yaml:"allow_loss" about:"start even if a setting of the database or the disk can cause the loss of counted updates"`
	KeepReceipts config.Duration `yaml:"keep_receipts" about:"time for which the server keeps receipts and declines of merged rounds, and the members of ended runs; 0s keeps them indefinitely"`
	KeepAudit    config.Duration `yaml:"keep_audit" about:"time for which the server keeps entries of the audit log; 0s keeps them indefinitely"`
	Revocations  string          `yaml:"revocations" about:"file with the list of all revocations, which a restore needs; empty means revocations.jsonl in the server's folder"`
}

// Agents configures how agents call the server.
type Agents struct {
	Poll         config.Duration `yaml:"poll" about:"interval between an agent's calls in a small fleet"`
	MaxPoll      config.Duration `yaml:"max_poll" about:"longest interval between an agent's calls"`
	Seen         config.Duration `yaml:"seen" about:"a run asks the clients of agents that were seen within this time; 0s means three intervals between calls or 10m, whichever is longer"`
	Certificates config.Duration `yaml:"certificates" about:"validity of agents' certificates"`
	Grace        config.Duration `yaml:"grace" about:"time after the expiry of an agent's certificate during which the agent can still renew it"`
}

// Limits limits what agents and strangers can request.
type Limits struct {
	Rate         float64 `yaml:"rate" about:"maximum calls per second of the whole fleet"`
	AddressRate  float64 `yaml:"address_rate" about:"maximum number of new connections per second from one address; 0 turns off all limits per address, which is needed behind a proxy that hides addresses"`
	AgentClients int     `yaml:"agent_clients" about:"maximum number of clients of an agent or region"`
}

// Rounds configures the coordinator.
type Rounds struct {
	Lease       config.Duration `yaml:"lease" about:"time without contact after which an agent's task is lost"`
	LongestTurn config.Duration `yaml:"longest_turn" about:"longest time for a task, even if its agent stays in contact; 0s means no limit"`
	Lead        config.Duration `yaml:"lead" about:"time after which another coordinator replaces a coordinator that crashed"`
	Data        string          `yaml:"data" about:"the coordinator's own dataset: a dataset.yaml, a folder with one, or a prepared file"`
	Root        string          `yaml:"root" about:"data folder, for a dataset.yaml with rooted: true; empty means $LOADSTAR_DATA"`
}

// Keys configures the storage of the certificate authority's keys.
type Keys struct {
	PassphraseFile string   `yaml:"passphrase_file" about:"file with the passphrase that encrypts the certificate authority's keys; empty means the systemd credential pki-passphrase, if there is one"`
	Signers        []string `yaml:"signers,flow" about:"external signers that have the issuer's key: exec:COMMAND or a URL; give two during a rotation"`
}

// Region makes the process the server of a region.
type Region struct {
	Hub    string          `yaml:"hub" about:"agent folder that 'loadstar agent join' created for the hub; empty means that this is not a region"`
	Linger config.Duration `yaml:"linger" about:"time that a region waits for more results before it sends a sum"`
}

// Web configures the dashboard.
type Web struct {
	Listen      string `yaml:"listen" about:"address for the dashboard, such as 127.0.0.1:7445; empty to disable"`
	CertFile    string `yaml:"cert_file" about:"file with the certificate of the dashboard (PEM), which can be renewed while the server runs"`
	KeyFile     string `yaml:"key_file" about:"file with the key of the dashboard's certificate (PEM)"`
	BehindProxy bool   `yaml:"behind_proxy" about:"true if a proxy in front of the dashboard terminates TLS"`
	URL         string `yaml:"url" about:"address of the dashboard for browsers, used in links; empty means the address in listen"`
	ReadOnly    bool   `yaml:"read_only" about:"refuse all changes from the dashboard"`
	OIDC        OIDC   `yaml:"oidc"`
}

// OIDC configures an OpenID Connect provider.
type OIDC struct {
	Issuer           string   `yaml:"issuer" about:"address of an OpenID Connect provider through which users can sign in to the dashboard"`
	ClientID         string   `yaml:"client_id" about:"client ID of this server at the provider"`
	ClientSecretFile string   `yaml:"client_secret_file" about:"file with the client secret that the provider issued; empty means a public client"`
	Claim            string   `yaml:"claim" about:"claim of the ID token that determines the role"`
	Roles            []string `yaml:"roles,flow" about:"values of the claim for each role, such as [viewer=staff, operator=grid, admin=it]"`
}

// Log configures the log.
type Log struct {
	Format string `yaml:"format" about:"text or json"`
	Level  string `yaml:"level" about:"debug, info, warn or error"`
}

// Default returns the settings of an empty file.
func Default() Config {
	const day = config.Duration(24 * time.Hour)
	return Config{
		Dir: "loadstar-data", Roles: []string{"gateway", "coordinator"}, Listen: ":7443", Hosts: []string{"localhost", "127.0.0.1"}, Watch: "127.0.0.1:7444",
		Store:  Store{KeepReceipts: 90 * day, KeepAudit: 2 * 365 * day},
		Agents: Agents{Poll: config.Duration(time.Second), MaxPoll: config.Duration(time.Hour), Certificates: 7 * day, Grace: 90 * day},
		Limits: Limits{Rate: 500, AddressRate: 50, AgentClients: 10_000},
		Rounds: Rounds{Lease: config.Duration(10 * time.Minute), LongestTurn: config.Duration(time.Hour), Lead: config.Duration(10 * time.Second)},
		Region: Region{Linger: config.Duration(30 * time.Second)},
		Web:    Web{OIDC: OIDC{Claim: "groups"}},
		Log:    Log{Format: "text", Level: "info"},
	}
}

// Source lists the sources of a configuration. Later sources take precedence.
type Source struct {
	// Dir is the server's folder. If File is empty, the folder's server.yaml is read, if it
	// exists.
	Dir, File string
	// Environ has the format of [os.Environ]: LOADSTAR_SERVE_STORE_DATABASE sets store.database.
	Environ []string
	// Set contains values by dotted key, as KEY=VALUE.
	Set []string
}

// Read reads a configuration and checks it.
func Read(s Source) (*Config, error) {
	c := Default()
	if s.Dir != "" {
		c.Dir = s.Dir
	}
	path := cmp.Or(s.File, filepath.Join(c.Dir, Name))
	keys, err := c.file(path, s.File == "")
	if err != nil {
		return nil, err
	}
	if s.Dir != "" {
		c.Dir = s.Dir
	}
	problems := config.Environment(&c, "LOADSTAR_SERVE_", s.Environ)
	for _, pair := range s.Set {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			problems.Add(0, "%q is not KEY=VALUE", pair)
		} else if err := config.Set(&c, key, value); err != nil {
			problems.Add(0, "%s", err)
		}
	}
	if len(problems) == 0 {
		c.check(keys, &problems)
	}
	return &c, problems.Err()
}

// file reads a file, which may be missing if optional is set. Relative paths in the file are
// relative to the file's folder.
func (c *Config) file(path string, optional bool) (map[string]int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	keys, err := config.Keys(text)
	if err == nil {
		err = config.Decode(text, c)
	}
	if _, own := keys["dir"]; own && optional && err == nil {
		err = errors.New("dir: this file is in the server's folder, so it must not set dir; remove the key")
	}
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", path, err)
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for key, p := range map[string]*string{
		"dir": &c.Dir, "store.blobs_ca": &c.Store.BlobsCA, "store.revocations": &c.Store.Revocations, "rounds.data": &c.Rounds.Data, "rounds.root": &c.Rounds.Root,
		"keys.passphrase_file": &c.Keys.PassphraseFile, "region.hub": &c.Region.Hub, "web.cert_file": &c.Web.CertFile, "web.key_file": &c.Web.KeyFile,
		"web.oidc.client_secret_file": &c.Web.OIDC.ClientSecretFile,
	} {
		if _, set := keys[key]; set && *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(base, *p)
		}
	}
	if b := c.Store.Blobs; b != "" && !strings.Contains(b, "://") && !filepath.IsAbs(b) {
		c.Store.Blobs = filepath.Join(base, b)
	}
	return keys, nil
}

func (c *Config) check(keys map[string]int, problems *config.Problems) {
	bad := func(key, format string, a ...any) { problems.Add(keys[key], key+" "+format, a...) }
	least := func(key string, d config.Duration, least time.Duration, zero bool) {
		if time.Duration(d) < least && !(zero && d == 0) {
			bad(key, "is %s; write at least %s", d, config.Duration(least))
		}
	}
	for _, r := range c.Roles {
		if r != "gateway" && r != "coordinator" {
			bad("roles", "has %q; %s", r, config.Suggest(r, []string{"gateway", "coordinator"}))
		}
	}
	if len(c.Roles) == 0 {
		bad("roles", "is empty; write gateway, coordinator or both")
	}
	if len(c.Hosts) == 0 {
		bad("hosts", "is empty; write the names under which agents reach the server")
	}
	least("agents.poll", c.Agents.Poll, time.Millisecond, false)
	least("agents.max_poll", c.Agents.MaxPoll, time.Duration(c.Agents.Poll), false)
	least("agents.certificates", c.Agents.Certificates, time.Minute, false)
	least("rounds.lease", c.Rounds.Lease, time.Second, false)
	least("rounds.longest_turn", c.Rounds.LongestTurn, time.Second, true)
	least("rounds.lead", c.Rounds.Lead, time.Second, false)
	if c.Limits.Rate <= 0 {
		bad("limits.rate", "is %g; write a number above 0", c.Limits.Rate)
	}
	if c.Limits.AddressRate < 0 {
		bad("limits.address_rate", "is %g; write a number of at least 0", c.Limits.AddressRate)
	}
	if c.Limits.AgentClients < 1 {
		bad("limits.agent_clients", "is %d; write at least 1", c.Limits.AgentClients)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		bad("log.format", "is %q; %s", c.Log.Format, config.Suggest(c.Log.Format, []string{"text", "json"}))
	}
	if levels := []string{"debug", "info", "warn", "error"}; !slices.Contains(levels, c.Log.Level) {
		bad("log.level", "is %q; %s", c.Log.Level, config.Suggest(c.Log.Level, levels))
	}
	for _, k := range c.Keepers {
		if _, err := keepers.Parse(k); err != nil {
			bad("keepers", "cannot be read: %v", err)
		}
	}
	c.checkRoles(bad)
}

// checkRoles reports settings that the roles of this process do not use.
func (c *Config) checkRoles(bad func(key, format string, a ...any)) {
	if len(c.Keepers) > 0 && c.Region.Hub != "" {
		bad("keepers", "has no effect in a region: set it at the hub")
	}
	switch {
	case c.Rounds.Data == "":
	case c.Region.Hub != "":
		bad("rounds.data", "has no effect in a region, which does not merge: set it at the hub")
	case !slices.Contains(c.Roles, "coordinator"):
		bad("rounds.data", "is for the role coordinator, which this process does not have")
	}
	w := c.Web
	if w.Listen == "" {
		if w.CertFile != "" || w.KeyFile != "" || w.BehindProxy || w.URL != "" || w.ReadOnly || w.OIDC.Issuer != "" {
			bad("web.listen", "is empty, so the dashboard is disabled: set an address, or remove the other keys of web")
		}
	} else if !slices.Contains(c.Roles, "gateway") {
		bad("web.listen", "is for the role gateway, which this process does not have")
	}
	if o := w.OIDC; o.Issuer == "" && (o.ClientID != "" || o.ClientSecretFile != "" || len(o.Roles) > 0) {
		bad("web.oidc.issuer", "is empty: the other keys of web.oidc need the address of the provider")
	}
}

// Print writes the settings as a server.yaml that explains each key.
func (c *Config) Print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "# Configuration of a Loadstar server. Keys may be left out; these are the current values.\n"); err != nil {
		return err
	}
	return printKeys(w, reflect.ValueOf(*c), "")
}

// each calls do for every field of a struct, with the field's key.
func each(v reflect.Value, do func(key, about string, value reflect.Value) error) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if err := do(key, f.Tag.Get("about"), v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func printKeys(w io.Writer, v reflect.Value, indent string) error {
	return each(v, func(key, about string, value reflect.Value) error {
		if value.Kind() == reflect.Struct {
			if _, err := fmt.Fprintf(w, "\n%s%s:\n", indent, key); err != nil {
				return err
			}
			return printKeys(w, value, indent+"  ")
		}
		node := yaml.Node{}
		if err := node.Encode(value.Interface()); err != nil {
			return err
		}
		if node.Style = yaml.FlowStyle; node.Kind == yaml.ScalarNode {
			node.Style = 0
		}
		text, err := yaml.Marshal(&node)
		if err == nil {
			if indent == "" && key == "dir" { // a file in the server's folder must not contain this key
				about, key = about+"; only for a file outside this folder", "# dir"
			}
			_, err = fmt.Fprintf(w, "%s# %s\n%s%s: %s\n", indent, about, indent, key, strings.TrimSpace(string(text)))
		}
		return err
	})
}
