package table

import (
	"regexp"
	"strings"
)

// unitInName finds a unit that is a separate word in a heading.
var unitInName = regexp.MustCompile(`(?i)(?:^|[^a-z])(kwh|mwh|wh|kw|mw|w)(?:$|[^a-z])`)

// UnitOf returns the unit of power or energy that a heading contains, or an empty string.
func UnitOf(heading string) string {
	m := unitInName.FindStringSubmatch(heading)
	if m == nil {
		return ""
	}
	for _, u := range []string{"kW", "W", "MW", "kWh", "Wh", "MWh"} {
		if strings.EqualFold(u, m[1]) {
			return u
		}
	}
	return ""
}

// unitAtEnd finds a unit at the end of a heading.
var unitAtEnd = regexp.MustCompile(`(?i)[\s_,;:]*(?:[\[(]\s*(?:in )?(?:kwh|mwh|wh|kw|mw|w)\s*(?:/[^\])]*)?[\])]|[\s_](?:in )?(?:kwh|mwh|wh|kw|mw|w))$`)

// WithoutUnit returns a heading without a unit at its end.
func WithoutUnit(heading string) string {
	if name := strings.TrimSpace(unitAtEnd.ReplaceAllString(heading, "")); name != "" {
		return name
	}
	return heading
}
