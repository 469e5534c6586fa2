// Package csvcell makes names safe in CSV files that somebody opens in a spreadsheet.
package csvcell

import (
	"strconv"
	"strings"
)

// Text returns s as a string that a spreadsheet does not treat as a formula. Names come from
// agents and from other people's data, so a name may begin with =, and a spreadsheet would
// execute it. Text puts an apostrophe, which spreadsheets do not show, before such a name. It
// does not change numbers.
func Text(s string) string {
	if s == "" || !strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Plain reverses [Text], for programs that read their own files.
func Plain(cell string) string {
	if s, ok := strings.CutPrefix(cell, "'"); ok && Text(s) == cell {
		return s
	}
	return cell
}
