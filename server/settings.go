package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/server/examine"
	"loadstar/server/ledger"
	"loadstar/server/sqlstore"
)

// runningFile is the prefix of the name of a file that exists in a process's folder while it
// runs. After a crash or a power loss, the file still exists.
const runningFile = "running-"

// examination returns the configuration for examining a running server.
func (s *server) examination() examine.Config {
	c := s.Config.examination()
	c.Ledger, c.Blobs = s.ledger, s.rawBlobs
	c.Waits = s.waits
	return c
}

// examination returns the configuration of an examination that does not include the stores.
func (c *Config) examination() examine.Config {
	e := examine.Config{Dir: c.Dir, Version: c.Version, Quiet: (&server{Config: *c}).fleetSeen}
	if !strings.HasPrefix(c.Blobs, "s3://") && !strings.HasPrefix(c.Blobs, "s3+http://") {
		e.BlobsDir = c.Blobs
	}
	if len(c.Roles) == 0 || slices.Contains(c.Roles, Gateway) {
		e.PKI, e.Operator = filepath.Join(c.Dir, pkiDir), filepath.Join(c.Dir, "operator")
	}
	return e
}

// checkSettings checks the settings that keep a counted update from being lost or
// counted twice. If one is wrong, the server does not start unless the operator accepts
// the loss. It also reports if the previous process did not end cleanly.
func (s *server) checkSettings(ctx context.Context) (err error) {
	undo, err := s.markRunning()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	e := s.examination()
	found, err := e.Settings(ctx)
	if err != nil {
		return err
	}
	if s.unclean {
		s.Log.Warn("the previous process did not end cleanly, because it was killed or the machine lost power; the ledger was checked, and contains everything that was counted", "marker", s.running.Name())
	}
	var wrong []error
	for _, f := range found {
		if f.Level != finding.OK {
			examine.Log(s.Log, f)
		}
		if f.Level == finding.Fail {
			wrong = append(wrong, fmt.Errorf("%s: %s; to do: %s", f.Check, f.Text, f.Do))
		}
	}
	if len(wrong) == 0 || s.AllowLoss {
		return nil
	}
	return fmt.Errorf("counted updates could be lost; correct this, or accept the risk with store.allow_loss: %w", errors.Join(wrong...))
}

// markRunning writes a file that is removed when the process ends cleanly, and records whether
// the previous process has left one. The caller must call undo if the start fails.
func (s *server) markRunning() (undo func(), err error) {
	path := filepath.Join(s.Dir, runningFile+strings.Join(s.Roles, "-"))
	_, err = os.Stat(path)
	there := err == nil
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if disk.TryLock(f) != nil {
		return func() {}, f.Close() // another process with the same folder and roles is running
	}
	s.running, s.unclean = f, there
	return func() {
		if there { // a later start must also report the unclean end
			_ = s.running.Close() // the file contains no data that must be kept
			s.running = nil
		}
	}, nil
}

// noteAddresses writes the addresses of this process to the file that markRunning has written,
// where doctor finds them.
func (s *server) noteAddresses() error {
	if s.running == nil {
		return nil
	}
	b, err := json.Marshal(s.listens)
	if err != nil {
		return err
	}
	if _, err := s.running.WriteAt(b, 0); err != nil {
		return err
	}
	return s.running.Truncate(int64(len(b)))
}

// endedCleanly removes the file that markRunning has written.
func (s *server) endedCleanly() {
	if s.running == nil {
		return
	}
	if err := errors.Join(os.Remove(s.running.Name()), s.running.Close()); err != nil {
		s.Log.Warn("cannot record that this process ended cleanly", "error", err)
	}
}

// Examine checks a server's folder and stores, whether or not the server is running, and leaves
// no files behind. 'loadstar doctor' shows the result.
func Examine(ctx context.Context, c Config) (all finding.List) {
	s := &server{Config: c}
	s.Database = cmp.Or(s.Database, "sqlite:"+filepath.Join(s.Dir, ledgerFile))
	s.Blobs = cmp.Or(s.Blobs, filepath.Join(s.Dir, blobsDir))
	e := s.Config.examination()
	if _, err := os.Stat(e.BlobsDir); err != nil {
		e.BlobsDir = "" // a new server creates it
	}
	if _, err := os.Stat(e.Dir); err != nil {
		e.Dir, e.PKI = "", ""
	}
	all = s.lookAtLedger(ctx, &e)
	if e.Ledger != nil {
		defer func() { _ = e.Ledger.Close() }() // the ledger was only read
	}
	if e.BlobsDir != "" || strings.Contains(s.Blobs, "://") {
		store, err := s.openBlobs(ctx)
		if err != nil {
			all.Fail("blobs", "check --blobs, the address and the keys of the S3 store", "%v", err)
		} else {
			e.Blobs = store
		}
	}
	found, err := e.Settings(ctx)
	if err != nil {
		all.Fail("database's settings", "check that the database runs, its address, and the network", "%v", err)
	}
	return append(append(all, found...), e.State(ctx)...)
}

// lookAtLedger opens an existing ledger for an examination.
func (s *server) lookAtLedger(ctx context.Context, e *examine.Config) (all finding.List) {
	const check = "database's schema"
	call, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	store, schema, err := sqlstore.OpenToLook(call, s.Database)
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.Database, "sqlite:"): // the path of a missing file, not a missing socket
		all.OK(check, "there is no database yet; loadstar serve creates it")
		return all
	case errors.Is(err, sqlstore.ErrDamaged):
		all.Fail("database's integrity", "stop the server, keep a copy of its folder, restore the newest backup, and replace the disk", "%v", err)
		return all
	case err != nil:
		all.Fail("database's answer", "check that the database runs, --database, the network, and that this user may read it", "%v", err)
		return all
	case schema.Version == 0:
		all.OK(check, "the database is empty; loadstar serve creates the tables")
		_ = store.Close() // the store was only read
		return all
	case schema.Version < schema.Known:
		all.Warn(check, "start the server, which migrates it; make a backup first", "version %d, but this program has %d", schema.Version, schema.Known)
	default:
		all.OK(check, "version %d", schema.Version)
	}
	e.Ledger = ledger.On(store)
	if store.SQLitePath() != "" {
		found, err := store.Integrity(ctx)
		if err != nil {
			all.Fail("database's integrity", "check the disk, and restore the newest backup", "%v", err)
		}
		all = append(all, found...)
	}
	if schema.Version < schema.Known {
		e.Quiet = nil // the columns may be missing
	}
	return all
}
