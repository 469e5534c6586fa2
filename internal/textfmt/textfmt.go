// Package textfmt formats counts, labels and CSV fields for people.
package textfmt

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Count formats a number and a noun, such as "1 step" or "2 steps".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Duration formats a duration without trailing zero units, such as 1h instead of 1h0m0s.
func Duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Synthetic returns a label for output from synthetic data, or "" for other data.
func Synthetic(generated bool) string {
	if generated {
		return " (SYNTHETIC data, not measurements)"
	}
	return ""
}

// Quoted returns a field as written in CSV, with quotes if it needs them.
func Quoted(s string) string {
	if strings.ContainsAny(s, ",\"\r\n") || strings.HasPrefix(s, " ") {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// Cell returns a text that a spreadsheet does not treat as a formula. Names come from agents
// and from other people's data, so a name may begin with =, and a spreadsheet would execute
// it. Cell puts an apostrophe before such a name, which spreadsheets do not show. Numbers do
// not change.
func Cell(s string) string {
	if s == "" || !strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Plain reverses [Cell], for programs that read their own files.
func Plain(cell string) string {
	if s, ok := strings.CutPrefix(cell, "'"); ok && Cell(s) == cell {
		return s
	}
	return cell
}
