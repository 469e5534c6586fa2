// Package examine checks a server: the settings of its stores, and the state of its stores,
// disks, clock, certificates, backups and agents. A server runs the checks when it starts and
// then every minute, and 'loadstar doctor' runs them on demand.
package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/internal/mtls"
	"loadstar/server/blob"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// Config describes what to examine. Parts that are nil or empty are skipped.
type Config struct {
	// Dir is the server's folder, and BlobsDir the folder of the blobs if they are stored in
	// files.
	Dir, BlobsDir string
	// PKI is the folder of the certificate authority. Operator is the folder of the
	// local operator's credentials.
	PKI, Operator string
	Ledger        *ledger.Ledger
	Blobs         blob.Store
	// Quiet returns the time after which an agent that has not called counts as quiet, given
	// the number of agents.
	Quiet func(agents int64) time.Duration
	// Waits returns a sentence for each run whose round waits for silent agents. It may be nil.
	Waits func(context.Context) ([]string, error)
	// Version is this program's version, to compare with the agents' versions.
	Version string
}

const (
	operatorWarning = 30 * 24 * time.Hour
	issuerWarning   = 180 * 24 * time.Hour
	rootWarning     = 365 * 24 * time.Hour
	agentWarning    = 24 * time.Hour
	// backupWarning is the age at which a backup is too old. Backups are normally made every
	// hour.
	backupWarning = 3 * time.Hour
)

// Settings checks the settings that must be correct before a server may start. With a wrong
// setting, a counted update can be lost. An error means that a setting of a store could not be
// read.
func (c *Config) Settings(ctx context.Context) (all finding.List, err error) {
	if c.Ledger != nil {
		if all, err = c.Ledger.Store.Settings(ctx); err != nil {
			return all, err
		}
	}
	if c.BlobsDir != "" {
		disk.Kind(&all, "blobs' file system", c.BlobsDir, false)
	}
	return all, nil
}

// State runs the checks whose results can change while a server runs.
func (c *Config) State(ctx context.Context) (all finding.List) {
	c.disks(&all)
	c.certificates(&all)
	if c.Ledger != nil {
		c.database(ctx, &all)
		if c.Quiet != nil {
			c.fleet(ctx, &all)
			c.versions(ctx, &all)
			c.readings(ctx, &all)
			c.rounds(ctx, &all)
		}
	}
	if c.Blobs != nil {
		if err := probe(ctx, c.Blobs); err != nil {
			all.Fail("blobs", "check the disk or the S3 store, its address, keys and rights: it must be possible to write, read and delete", "%v", err)
		} else {
			all.OK("blobs", "a blob was written, read and deleted")
		}
	}
	if c.Ledger != nil && c.Ledger.Store.SQLitePath() != "" {
		c.backup(&all)
	}
	return all
}

// folder is a folder with data of the server, and its description.
type folder struct{ name, dir string }

// folders returns the folders with the server's data, except folders inside other ones.
func (c *Config) folders() (all []folder) {
	add := func(name, dir string) {
		for _, has := range all {
			if within(has.dir, dir) {
				return
			}
		}
		if dir != "" {
			all = append(all, folder{name, dir})
		}
	}
	add("server", c.Dir)
	if c.Ledger != nil && c.Ledger.Store.SQLitePath() != "" {
		add("database", filepath.Dir(c.Ledger.Store.SQLitePath()))
	}
	add("blobs", c.BlobsDir)
	return all
}

// within reports whether the folder inner is outer or is below it.
func within(outer, inner string) bool {
	inside, err := filepath.Rel(outer, inner)
	return err == nil && filepath.IsLocal(inside)
}

func (c *Config) disks(all *finding.List) {
	for _, f := range c.folders() {
		disk.Room(all, "disk of the "+f.name, f.dir)
		disk.Writable(all, "writing for the "+f.name, f.dir)
	}
}

func (c *Config) certificates(all *finding.List) {
	if c.PKI == "" {
		return
	}
	issuers, err := pki.Issuers(c.PKI)
	if errors.Is(err, fs.ErrNotExist) {
		return // a new server creates it
	} else if err != nil {
		all.Fail("issuer of certificates", "restore "+c.PKI+" from a backup", "%v", err)
		return
	}
	for _, i := range issuers {
		if i.Signs {
			all.Validity("issuer of certificates", i.From, i.Expires, issuerWarning, "run loadstar pki rotate with the root's key")
			all.Validity("root certificate", i.From, i.RootExpires, rootWarning, "run loadstar pki rotate --root")
		}
	}
	if own, err := mtls.ReadFolder(c.Operator); err == nil {
		all.Validity("local operator's certificate", own.Leaf.NotBefore, own.Leaf.NotAfter, operatorWarning, "restart the server, which renews it")
	} else if !errors.Is(err, fs.ErrNotExist) {
		all.Warn("local operator's certificate", "remove "+c.Operator+" and restart the server, which then creates new credentials", "%v", err)
	}
}

func (c *Config) database(ctx context.Context, all *finding.List) {
	if err := c.Ledger.Store.Healthy(ctx); err != nil {
		all.Fail("database's answer", "check that the database runs, its address, and the network", "%v", err)
		return
	}
	all.OK("database's answer", "it answers")
	if c.Ledger.Store.SQLitePath() == "" { // SQLite has no clock of its own
		all.Clock("clock and the database", c.Ledger.Store.ClockOffset(), "the database's")
		if found, err := c.Ledger.Store.Integrity(ctx); err == nil {
			*all = append(*all, found...)
		}
	}
}

func (c *Config) fleet(ctx context.Context, all *finding.List) {
	n, err := c.Ledger.Directory.Agents(ctx)
	if err != nil {
		return // the check of the database reports this
	}
	now := time.Now()
	quiet := c.Quiet(n)
	f, err := c.Ledger.Directory.CountFleet(ctx, now.Add(-quiet), now.Add(agentWarning))
	switch {
	case err != nil || f.Agents == 0:
	case f.Quiet*10 > f.Agents:
		all.Warn("agents", "see loadstar fleet list; check these agents' machines and the network to them", "%d of %d agents were not seen for %s", f.Quiet, f.Agents, quiet)
	default:
		all.OK("agents", "%d of %d were seen in the last %s", f.Agents-f.Quiet, f.Agents, quiet)
	}
	if err == nil && f.Expiring > 0 {
		all.Warn("agents' certificates", "check that these agents run and reach the server, because a running agent renews its certificate", "%d expire within %s", f.Expiring, agentWarning)
	}
}

// rounds reports the rounds that wait for silent agents.
func (c *Config) rounds(ctx context.Context, all *finding.List) {
	if c.Waits == nil {
		return
	}
	some, err := c.Waits(ctx)
	switch {
	case err != nil: // the check of the database reports this
	case len(some) == 0:
		all.OK("rounds", "no round waits for a silent agent")
	default:
		all.Warn("rounds", "check the machines of these agents and the network to them; the round continues without them", "%s", strings.Join(some, "; "))
	}
}

// wrongMeter contains the findings that indicate a faulty meter.
var wrongMeter = []string{"impossible", "unit-jump", "clock-shift"}

// readings reports whether clients send invalid readings.
func (c *Config) readings(ctx context.Context, all *finding.List) {
	found, err := c.Ledger.Reports.FindingsNow(ctx)
	if err != nil {
		return // the check of the database reports this
	}
	var some []string
	for _, f := range found {
		if slices.Contains(wrongMeter, f.Code) {
			some = append(some, fmt.Sprintf("%s at %d", f.Code, f.Clients))
		}
	}
	if len(some) == 0 {
		all.OK("clients' readings", "no client reports that its meter is wrong")
		return
	}
	all.Warn("clients' readings", "see loadstar fleet list --findings, and the pages of these agents", "clients report faulty meters: %s", strings.Join(some, ", "))
}

// versions compares the agents' versions with this program's version.
func (c *Config) versions(ctx context.Context, all *finding.List) {
	seen, err := c.Ledger.Directory.AgentVersions(ctx)
	if err != nil || c.Version == "" || len(seen) == 0 {
		return // the check of the database reports this
	}
	var others []string
	for _, v := range slices.Sorted(maps.Keys(seen)) {
		if v != c.Version {
			others = append(others, fmt.Sprintf("%d have %s", seen[v], cmp.Or(v, "an unknown version")))
		}
	}
	if len(others) == 0 {
		all.OK("agents' versions", "all agents have %s, as this program", c.Version)
	} else {
		all.OK("agents' versions", "this program is %s; of the agents, %d have it too, and %s", c.Version, seen[c.Version], strings.Join(others, ", "))
	}
}

// probe writes, reads and deletes a blob.
func probe(ctx context.Context, s blob.Store) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	// The content is unique, because the probe must not delete a blob that is in use.
	hash, err := s.Put(ctx, fmt.Appendf(nil, "probe of %s, process %d, at %d", host, os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		return err
	}
	_, err = s.Get(ctx, hash)
	return errors.Join(err, s.Delete(ctx, hash))
}
