package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"loadstar/rig/faultfs"
	"loadstar/server"
	serverledger "loadstar/server/ledger"
	"loadstar/server/pki"
	"loadstar/server/sqlstore"
)

// TestPowerAfterRestore cuts the power after a backup was restored, with different losses.
// No data may be missing.
func TestPowerAfterRestore(t *testing.T) {
	if err := faultfs.Available(); err != nil {
		t.Skip("skipped:", err)
	}
	ctx := t.Context()
	home, disks := t.TempDir(), t.TempDir()
	l, err := serverledger.Open(ctx, "sqlite:"+filepath.Join(home, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pki.Init(filepath.Join(home, "pki"), pki.Keys{}); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if err := server.Backup(ctx, home, &backup); err != nil {
		t.Fatal(err)
	}
	s, err := faultfs.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	at := filepath.Join(disks, "disk")
	if err := s.New(filepath.Join(disks, "folder"), at); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(12) {
		to := filepath.Join(at, fmt.Sprint(seed))
		if _, err := server.Restore(ctx, bytes.NewReader(backup.Bytes()), to, ""); err != nil {
			t.Fatal(err)
		}
		loss, err := s.Cut(at, seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := sqlstore.VerifyFile(t.Context(), filepath.Join(to, "ledger.db")); err != nil {
			t.Errorf("%s: %v", loss, err)
		}
		if _, err := pki.OpenExisting(filepath.Join(to, "pki"), pki.Keys{}); err != nil {
			t.Errorf("%s: %v", loss, err)
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
}
