package coordinator

import (
	"testing"

	"loadstar/server/blob"
)

// TestFetchStoresAgain checks that a blob that only this process's cache still has, because
// another process has deleted it, is stored again before the ledger refers to it. The
// simulation found this fault with seed 1568.
func TestFetchStoresAgain(t *testing.T) {
	store, err := blob.Files(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{RegionConfig: RegionConfig{Blobs: blob.Cached(store, 1<<20)}}
	hash, err := r.Blobs.Put(t.Context(), []byte("weights"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), hash); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fetch(t.Context(), hash, 100); err != nil {
		t.Fatal(err)
	}
	if b, err := store.Get(t.Context(), hash); err != nil || string(b) != "weights" {
		t.Errorf("%q, %v", b, err)
	}
}
