package sqlstore

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"loadstar/internal/finding"
)

// TestPatroniVersion checks that a warning names each version of Patroni that can lose commits,
// and no other version.
func TestPatroniVersion(t *testing.T) {
	const host = "127.77.3.9" // Patroni's port is fixed, so the test uses a separate address
	listener, err := net.Listen("tcp", host+":"+patroniPort)
	if err != nil {
		t.Skip(err)
	}
	var version string
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/patroni" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"state": "running", "patroni": {"version": %q, "scope": "loadstar"}}`, version)
	})}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { s.Close() })
	config, err := pgx.ParseConfig("postgres://postgres@127.77.3.8," + host + "/loadstar")
	if err != nil {
		t.Fatal(err)
	}
	l := &Store{listener: config}
	for v, warns := range map[string]bool{"3.0.2": true, "2.1.4": true, "3.0.3": false, "3.3.1": false, "4.0.1": false, "": false} {
		version = v
		var all finding.List
		l.judgePatroni(t.Context(), &all)
		text := fmt.Sprint(all)
		if warns != strings.Contains(text, "etcd3:") || (v == "") != (len(all) == 0) {
			t.Errorf("%q: %s", v, text)
		}
	}
}
