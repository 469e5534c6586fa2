package cli

import "testing"

// TestFit checks that prose is rewrapped such that no last line consists of a single word, and
// that tables keep their rows.
func TestFit(t *testing.T) {
	for text, want := range map[string]string{
		"short\nlines stay":                     "short\nlines stay",
		"a line that is too wide\nand its end":  "a line that is too\nwide and its end",
		"first\n\na line that is too wide":      "first\n\na line that is too\nwide",
		"  a  a row that is too wide\n  b  row": "  a  a row that is\n     too wide\n  b  row",
	} {
		if got := fit(text, 19); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
