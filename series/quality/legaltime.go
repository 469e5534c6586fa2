package quality

import (
	"strings"
	"time"

	"loadstar/series"
)

// legalZone returns the time zone whose legal time the meters' owners follow. This is the zone
// of the clock itself or, for a clock on standard time, the zone after which the clock is
// named. It returns nil if the zone is unknown.
func legalZone(clock *time.Location) *time.Location {
	zone, err := series.LegalTime(clock)
	if err != nil {
		return nil // no zone database on this machine: skip the check
	}
	return zone
}

// clockChange is a daylight-saving change, or another change of legal time.
type clockChange struct {
	unix  int64
	hours float64 // positive if clocks are put forward
}

// clockChanges returns the changes of a zone's legal time within a span.
func clockChanges(zone *time.Location, from, to int64) []clockChange {
	var found []clockChange
	for t := time.Unix(from, 0).In(zone); ; {
		_, end := t.ZoneBounds()
		if end.IsZero() || end.Unix() >= to {
			return found
		}
		_, before := t.Zone()
		_, after := end.Zone()
		if after != before {
			found = append(found, clockChange{end.Unix(), float64(after-before) / 3600})
		}
		t = end
	}
}

// changingZones returns the zones whose daylight-saving changes the checker examines. This
// is the given zone if it has daylight saving. If the zone is UTC or unknown, changingZones
// returns zones with the rules of Europe, North America and Australia, because people do
// not live by UTC. Zones that this machine does not know are left out.
func changingZones(zone *time.Location, from int64) []*time.Location {
	const overAYear = 400 * 24 * 60 * 60
	if zone != nil {
		if len(clockChanges(zone, from, from+overAYear)) > 0 {
			return []*time.Location{zone}
		}
		if name := zone.String(); name != "UTC" && !strings.HasPrefix(name, "Etc/") {
			return nil
		}
	}
	var zones []*time.Location
	for _, name := range []string{"Europe/London", "America/New_York", "Australia/Sydney"} {
		if z, err := time.LoadLocation(name); err == nil {
			zones = append(zones, z)
		}
	}
	return zones
}
