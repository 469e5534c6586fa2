// Package table reads tables of load readings, and converts the times in them to instants. The
// tables are CSV files in the many formats in which meters are exported, Parquet files and
// spreadsheets (.xlsx). A spreadsheet is read as the CSV that a spreadsheet program would
// export, but with unambiguous dates and numbers.
//
// The package does not guess. A [Format] and a [Clock] describe the file, and a value that
// does not match them is an error.
package table

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Table is a sequence of rows with named columns.
type Table interface {
	// Columns returns the names of the columns in the file.
	Columns() []string
	// Each calls f for every row with the cells of the wanted columns, which are valid only
	// during the call. It stops at the first error of f and returns that error with the position
	// of the row.
	Each(wanted []int, f func(cells []Cell) error) error
}

// FirstColumn is the name given to a first column without a name.
const FirstColumn = "(first column)"

// Cell is one value of a table.
type Cell struct {
	kind    kind
	decimal byte    // the decimal separator of a text, or 0 for a point without thousands separators
	text    []byte  // the text, or the text that marks an empty cell as missing
	number  float64 // the value of a number or an integer
	// integer is the value of an integer cell, or the Unix time of a time cell.
	integer  int64
	local    bool // the time has no UTC offset
	fraction bool // the time is not a whole second
}

type kind uint8

const (
	kindText kind = iota
	kindEmpty
	kindNumber
	kindInteger
	kindTime
)

// Text returns the cell for a field of a text file. The usual words for a missing value
// give an empty cell.
func Text(s []byte) Cell {
	s = bytes.TrimSpace(s)
	if len(s) > 4 {
		return Cell{kind: kindText, text: s}
	}
	switch string(s) {
	case "", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "n/a", "#N/A", "#NV", "-", "--", "---":
		return Cell{kind: kindEmpty, text: s}
	}
	return Cell{kind: kindText, text: s}
}

// Empty returns an empty cell.
func Empty() Cell { return Cell{kind: kindEmpty} }

// Number returns the cell for a number. NaN gives an empty cell.
func Number(v float64) Cell {
	if v != v {
		return Cell{kind: kindEmpty}
	}
	return Cell{kind: kindNumber, number: v}
}

// Integer returns the cell for an integer.
func Integer(v int64) Cell {
	return Cell{kind: kindInteger, number: float64(v), integer: v}
}

// Time returns the cell for a time in Unix seconds. Local means that the time is on a clock
// whose zone is not known, and fraction means that the time is not a whole second.
func Time(unix int64, local, fraction bool) Cell {
	return Cell{kind: kindTime, integer: unix, local: local, fraction: fraction}
}

// IsEmpty reports whether the value is missing.
func (c *Cell) IsEmpty() bool { return c.kind == kindEmpty }

// Zoned reports whether the cell is a time with a UTC offset.
func (c *Cell) Zoned() bool {
	if c.kind == kindText {
		at, ok := scanISO(c.text)
		return ok && at.zoned
	}
	return c.kind == kindTime && !c.local
}

// Name returns the cell's content as a name, which is valid as long as the cell is.
func (c *Cell) Name() []byte {
	switch c.kind {
	case kindNumber:
		return strconv.AppendFloat(nil, c.number, 'f', -1, 64)
	case kindInteger:
		return strconv.AppendInt(nil, c.integer, 10)
	case kindTime:
		return time.Unix(c.integer, 0).UTC().AppendFormat(nil, time.DateTime)
	}
	return c.text
}

// Value returns the cell's content as a number, or NaN if the cell is empty.
func (c *Cell) Value() (float64, error) {
	switch c.kind {
	case kindEmpty:
		return math.NaN(), nil
	case kindNumber, kindInteger:
		if math.IsInf(c.number, 0) {
			return 0, fmt.Errorf("%g is not a finite number", c.number)
		}
		return c.number, nil
	case kindTime:
		return 0, errors.New("want a number, found a time")
	}
	if c.decimal != 0 {
		v, ok := ParseNumber(c.text, c.decimal)
		if !ok {
			return 0, fmt.Errorf("%q is not a number with the decimal separator %q; correct decimal, or use data init --decimal", Clip(c.text), string(c.decimal))
		}
		return v, nil
	}
	v, err := strconv.ParseFloat(string(c.text), 64)
	switch {
	case err == nil && !math.IsInf(v, 0) && v == v:
		return v, nil
	case bytes.IndexByte(c.text, ',') >= 0:
		return 0, fmt.Errorf("%q contains a comma; for a decimal comma write decimal: \",\", for thousands separators decimal: \".\", or use data init --decimal", Clip(c.text))
	}
	return 0, fmt.Errorf("%q is not a number", Clip(c.text))
}

// maxNumber is the length of the longest number that ParseNumber accepts, in bytes.
const maxNumber = 48

// ParseNumber parses a number with the given decimal separator. The number may have thousands
// separators between groups of three digits.
func ParseNumber(s []byte, decimal byte) (v float64, ok bool) {
	var buf [maxNumber]byte
	out := buf[:0]
	bad := len(s) > maxNumber
	whole, digits, grouped := true, 0, false // digits since the latest separator
	for i := 0; i < len(s) && !bad; i++ {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			out = append(out, c)
			digits++
		case c == decimal && whole:
			bad = grouped && digits != 3
			out = append(out, '.')
			whole = false
		case whole && digits > 0 && digits <= 3 && (!grouped || digits == 3) && thousands(s[i:], decimal) > 0:
			i += thousands(s[i:], decimal) - 1
			digits, grouped = 0, true
		case (c == '-' || c == '+') && i == 0:
			out = append(out, c)
		case (c == 'e' || c == 'E') && !grouped && i > 0:
			out = append(out, s[i:]...)
			whole, i = false, len(s)
		default:
			bad = true
		}
	}
	if bad || whole && grouped && digits != 3 {
		return 0, false
	}
	return finite(string(out))
}

// finite parses a number in the usual format. Infinity is not accepted.
func finite(s string) (float64, bool) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && !math.IsInf(v, 0) && v == v {
		return v, true
	}
	return 0, false
}

// thousands returns the length of the thousands separator at the start of s, or 0.
func thousands(s []byte, decimal byte) int {
	switch c := s[0]; {
	case (c == '.' || c == ',') && c != decimal, c == ' ', c == '\'':
		return 1
	}
	for _, sep := range []string{"\u00a0", "\u202f", "\u2009", "\u2019"} {
		if bytes.HasPrefix(s, []byte(sep)) {
			return len(sep)
		}
	}
	return 0
}

// Clip shortens a string for an error message.
func Clip(s []byte) string {
	if len(s) > 60 {
		return string(s[:60]) + "..."
	}
	return string(s)
}

// IsTime reports whether the cell is a time, as opposed to a string that represents one.
func (c *Cell) IsTime() bool { return c.kind == kindTime }
