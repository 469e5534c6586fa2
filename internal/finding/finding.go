// Package finding defines the results of checks of a machine and of a server, with
// advice.
package finding

import "fmt"

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is what one check found.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what to do; empty if the level is OK
}

// List collects findings in the order of the checks.
type List []Finding

// OK adds a finding that needs nothing to be done.
func (l *List) OK(check, format string, a ...any) {
	*l = append(*l, Finding{OK, check, fmt.Sprintf(format, a...), ""})
}

// Warn adds a finding that should be looked at.
func (l *List) Warn(check, do, format string, a ...any) {
	*l = append(*l, Finding{Warn, check, fmt.Sprintf(format, a...), do})
}

// Fail adds a finding that stops a server, or breaks what it promises.
func (l *List) Fail(check, do, format string, a ...any) {
	*l = append(*l, Finding{Fail, check, fmt.Sprintf(format, a...), do})
}
