package head

import (
	"crypto/ed25519"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestSignature checks that a signature covers every field, and that moving bytes from one
// field to the next makes it invalid.
func TestSignature(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := Head{Run: "run", Version: 3, Weights: "abc", Previous: []byte("previous")}
	h.Sign(private)
	if !h.Valid(public) {
		t.Fatal("the signature is not valid")
	}
	for name, change := range map[string]func(*Head){
		"run":                func(h *Head) { h.Run = "rum" },
		"version":            func(h *Head) { h.Version = 4 },
		"weights":            func(h *Head) { h.Weights = "abd" },
		"previous":           func(h *Head) { h.Previous = nil },
		"weights in the run": func(h *Head) { h.Run, h.Weights = "runa", "bc" },
	} {
		other := h
		if change(&other); other.Valid(public) || string(other.Hash()) == string(h.Hash()) {
			t.Errorf("another %s is not noticed", name)
		}
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil || h.Valid(other) || h.Valid(nil) {
		t.Error("another key is accepted")
	}
}

func TestKey(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadKey(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := WriteKey(dir, nil); err == nil {
		t.Error("an empty key is written")
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteKey(dir, public); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadKey(dir); err != nil || !got.Equal(public) {
		t.Errorf("%x, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), []byte("12"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
