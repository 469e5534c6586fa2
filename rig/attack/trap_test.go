package main

import "testing"

// TestTrap carries S3 out, which needs no binary.
func TestTrap(t *testing.T) {
	r, err := setTrap(t.Context(), nil)
	if err != nil || !r.Repelled {
		t.Fatal(r, err)
	}
	t.Log(r.Detail)
}
