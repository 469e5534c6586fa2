// Package finding defines the results of checks of a machine and of a server, with
// advice.
package finding

import "fmt"

// Level is the severity of a finding.
type Level string

// The levels of findings.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is the result of one check.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what to do; empty if the level is OK
}

// List collects findings in the order of the checks.
type List []Finding

// OK adds a finding that requires no action.
func (l *List) OK(check, format string, a ...any) {
	*l = append(*l, Finding{OK, check, fmt.Sprintf(format, a...), ""})
}

// Warn adds a finding that somebody should examine.
func (l *List) Warn(check, do, format string, a ...any) {
	*l = append(*l, Finding{Warn, check, fmt.Sprintf(format, a...), do})
}

// Fail adds a finding that stops a server or breaks its guarantees.
func (l *List) Fail(check, do, format string, a ...any) {
	*l = append(*l, Finding{Fail, check, fmt.Sprintf(format, a...), do})
}
