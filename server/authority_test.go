package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/testkit"
	"loadstar/server/pki"
)

// TestEmptyAuthority checks that a gateway without certificates does not create a new root
// for a ledger that is in use, because no agent would trust that root. Only `pki init`
// creates one.
func TestEmptyAuthority(t *testing.T) {
	for name, agents := range map[string]int{
		"the ledger has certificates of another authority, the newest of user local": 0,
		"agents have joined that trust another authority (1)":                        1,
	} {
		st := newStation(t, nil)
		for range agents {
			st.join()
		}
		root := st.authority.Roots()[0]
		st.stop()
		dir := filepath.Join(st.Dir, pkiDir)
		testkit.Must(t, os.Rename(dir, dir+".lost"))
		open := func() (*server, error) {
			s := &server{Config: st.Config, registry: prometheus.NewRegistry()}
			s.Roles = []string{Gateway}
			err := s.open(t.Context())
			s.close()
			return s, err
		}
		_, err := open()
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "restore it from a backup") || !strings.Contains(err.Error(), "loadstar pki init --dir "+st.Dir) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: files were created: %v", name, err)
		}
		// An empty folder is treated as if it were missing.
		testkit.Must(t, os.Mkdir(dir, 0o700))
		if _, err := open(); err == nil {
			t.Errorf("%s: the server opened", name)
		}
		testkit.Must(t, pki.Init(dir, pki.Keys{}))
		s, err := open()
		if err != nil || string(s.authority.Roots()[0]) == string(root) {
			t.Errorf("%s: after pki init: %v", name, err)
		}
		testkit.Must(t, os.RemoveAll(dir))
		testkit.Must(t, os.Rename(dir+".lost", dir))
		s, err = open()
		if err != nil || string(s.authority.Roots()[0]) != string(root) {
			t.Errorf("%s: with the folder again: %v", name, err)
		}
	}
}
