// Package csvcell makes names safe in CSV files that somebody opens in a spreadsheet.
package csvcell

import (
	"strconv"
	"strings"
)

// Text returns a text that a spreadsheet does not take for a formula. Names come from agents
// and from data of others, so one may begin with =, and a spreadsheet would execute it. Such a
// text gets an apostrophe in front, which spreadsheets do not show. Numbers stay as they are.
func Text(s string) string {
	if s == "" || !strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}

// Plain returns the text from which [Text] made a cell, for programs that read their own files.
func Plain(cell string) string {
	if s, ok := strings.CutPrefix(cell, "'"); ok && Text(s) == cell {
		return s
	}
	return cell
}
