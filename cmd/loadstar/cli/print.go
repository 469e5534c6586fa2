package cli

import (
	"encoding/json"
	"fmt"
	"io"
)

// PrintLine writes v as JSON on one line.
func PrintLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// PrintJSON writes v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Count formats a number and a noun, such as "1 layer" or "2 layers".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
