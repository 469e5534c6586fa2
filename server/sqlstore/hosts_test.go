package sqlstore

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestHostsByName checks that a host that has failed is tried last, although connections know
// only its address, not its name.
func TestHostsByName(t *testing.T) {
	var h hosts
	all, err := h.lookup(t.Context(), "localhost")
	if err != nil || !slices.Contains(all, "127.0.0.1") {
		t.Skipf("localhost is %v: %v", all, err)
	}
	config, err := pgx.ParseConfig("postgres://localhost:5001,localhost:5002,127.0.0.9:5001/loadstar?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	h.fail("127.0.0.1:5001")
	if err := h.order(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if last := config.Fallbacks[len(config.Fallbacks)-1]; config.Port != 5002 || last.Host != "localhost" || last.Port != 5001 {
		t.Errorf("first %s:%d, last %s:%d", config.Host, config.Port, last.Host, last.Port)
	}
}
