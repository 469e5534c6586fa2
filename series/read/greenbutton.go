package read

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"loadstar/series"
)

// GreenButton imports Green Button data: ESPI resources in Atom feeds (NAESB REQ.21). The times
// in the feeds are Unix times, so the zone is needed only for calendar features and daylight
// saving.
type GreenButton struct {
	// Zone is the IANA time zone of the meters. The files contain only the zone's UTC offset.
	Zone string
	// Interval selects the meters with this interval. If it is 0, all meters must have
	// the same interval.
	Interval time.Duration
}

// Open indexes the feeds in a folder. The readings are read by Import.Each.
func (g GreenButton) Open(dir string) (*Import, error) {
	paths, err := folder(dir, ".xml", ".xml.gz")
	if err != nil {
		return nil, err
	}
	var files []source
	for _, p := range paths {
		files = append(files, fileSource(p))
	}
	return g.open(files)
}

func (g GreenButton) open(files []source) (*Import, error) {
	f := feeds{files: files}
	for i := range files {
		if err := f.scan(i); err != nil {
			return nil, err
		}
	}
	if err := g.checkZone(f.local); err != nil {
		return nil, err
	}
	out := &Import{
		About: "Green Button data (ESPI)", Zone: g.Zone,
		LabelNames: []string{"name"},
	}
	if err := f.resolve(); err != nil {
		return nil, err
	}
	if len(f.renamed) > 0 {
		out.note("%s appears with several ids and was imported as one meter; if these are different meters, import their files separately", shorten(slices.Compact(f.renamed), 3))
	}
	meters, err := f.choose(out)
	if err != nil {
		return nil, err
	}
	if meters, err = g.pick(meters, out); err != nil {
		return nil, err
	}
	out.Meters = len(meters)
	out.each = func(emit func(series.Meter, []string) error) error { return f.read(meters, out, emit) }
	return out, nil
}

// checkZone compares the zone with the UTC offsets in the files.
func (g GreenButton) checkZone(local []espiLocalTime) error {
	zone, err := loadZone(g.Zone)
	if g.Zone == "" {
		err = errors.New("the meters' time zone is missing: set it, for example to America/New_York")
		if len(local) > 0 {
			err = fmt.Errorf("%w (the files say %s)", err, local[0])
		}
	}
	if err != nil {
		return err
	}
	_, standard := time.Unix(0, 0).In(series.StandardTime(zone)).Zone()
	for _, l := range local {
		if l.Offset != standard {
			return fmt.Errorf("zone %s is %s without daylight saving, but the files say %s", g.Zone, offsetName(standard), l)
		}
	}
	return nil
}

// pick returns the meters with the interval g.Interval, or all meters if g.Interval is 0. It
// sets the interval of the import.
func (g GreenButton) pick(meters []*espiMeter, out *Import) ([]*espiMeter, error) {
	count := map[time.Duration]int{}
	for _, m := range meters {
		count[m.interval]++
	}
	var found []string
	for _, v := range slices.Sorted(maps.Keys(count)) {
		found = append(found, fmt.Sprintf("%s (%d)", v, count[v]))
	}
	if out.Interval = g.Interval; out.Interval == 0 {
		if len(count) > 1 {
			return nil, fmt.Errorf("the meters have different intervals: %s; choose one", strings.Join(found, ", "))
		}
		out.Interval = meters[0].interval
	}
	if out.Interval < time.Second || 24*time.Hour%out.Interval != 0 {
		return nil, fmt.Errorf("an interval of %s does not divide a day into equal parts", out.Interval)
	}
	kept := slices.DeleteFunc(slices.Clone(meters), func(m *espiMeter) bool { return m.interval != out.Interval })
	if len(kept) == 0 {
		return nil, fmt.Errorf("no meter has an interval of %s; there are %s", out.Interval, strings.Join(found, ", "))
	}
	if n := len(meters) - len(kept); n > 0 {
		out.note("left out %d of %d meters because their interval is not %s", n, len(meters), out.Interval)
	}
	return kept, nil
}
