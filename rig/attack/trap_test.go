package main

import "testing"

// TestTrap carries out attack S3, which needs no binary.
func TestTrap(t *testing.T) {
	r, err := setTrap(t.Context(), nil)
	if err != nil || !r.Repelled {
		t.Fatal(r, err)
	}
	t.Log(r.Detail)
}
