package testkit

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/internal/stateformat"
)

var newFormat = flag.Bool("new-format", false, "write missing golden files of the newest format")

// NewFormat reports whether tests write missing golden files.
func NewFormat() bool { return *newFormat }

// Golden returns the content of testdata/NAME.formatN, where N is the format.
func Golden(t testing.TB, name string, format uint32) []byte {
	t.Helper()
	b, err := os.ReadFile(path(name, format))
	if err != nil {
		t.Fatalf("%v: with -new-format the test writes the golden file of a new format", err)
	}
	return b
}

func path(name string, format uint32) string {
	return filepath.Join("testdata", fmt.Sprintf("%s.format%d", name, format))
}

// CheckGolden compares an encoding with the files testdata/NAME.formatN of all formats. encoded
// is the test's state in the program's current encoding. decode decodes a state and returns an
// error if it differs from the test's state. CheckGolden also damages the encoded state in many
// ways, and changes its format number to a newer one; decode must return the corresponding
// error each time.
func CheckGolden(t *testing.T, name string, f stateformat.Format, encoded []byte, decode func([]byte) error) {
	t.Helper()
	if newest := path(name, f.Version); *newFormat {
		if _, err := os.Stat(newest); errors.Is(err, os.ErrNotExist) {
			if err := os.WriteFile(newest, encoded, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := uint32(1); n <= f.Version; n++ {
		if err := decode(Golden(t, name, n)); err != nil {
			t.Errorf("format %d: %v", n, err)
		}
	}
	if !bytes.Equal(encoded, Golden(t, name, f.Version)) {
		t.Errorf("the encoding differs from the golden file of format %d: increment the format version, keep reading the old formats, and run the test with -new-format", f.Version)
	}
	for n := range encoded {
		if err := decode(encoded[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(encoded))
		} else if n >= len(f.Magic) && !errors.Is(err, stateformat.ErrDamaged) {
			t.Errorf("the first %d of %d bytes: %v", n, len(encoded), err)
		}
		for bit := range 8 {
			b := bytes.Clone(encoded)
			b[n] ^= 1 << bit
			if err := decode(b); !errors.Is(err, stateformat.ErrDamaged) {
				t.Errorf("bit %d of byte %d flipped: %v", bit, n, err)
			}
			_ = decode(f.Wrap(b)) // must not panic, even with a valid checksum
		}
	}
	newer := f
	newer.Version += 2
	err := decode(newer.Wrap([]byte("anything")))
	want := fmt.Sprintf("written by a newer Loadstar (format %d, this one reads up to %d): upgrade", newer.Version, f.Version)
	if !errors.Is(err, stateformat.ErrNewer) || !strings.Contains(err.Error(), want) {
		t.Errorf("format %d: %v, want %q", newer.Version, err, want)
	}
}
