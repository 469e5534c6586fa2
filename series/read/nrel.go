package read

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"loadstar/series"
	"loadstar/series/table"
)

// NREL imports files of the End-Use Load Profiles for the U.S. Building Stock: time series
// of individual buildings (ComStock and ResStock), their metadata, and the weather of their
// county.
//
// The buildings are simulated in local standard time. The published time series have labels in
// Eastern Standard Time regardless of the building's zone, and the labels mark the end of an
// interval. The publisher filled the resulting gap at the start of the year with rows from the
// end of the year. These rows are left out here. The weather is in local standard time, and its
// labels mark the end of an hour.
type NREL struct {
	// Zone is the IANA time zone of the buildings.
	Zone string
	// LocalLabels means that the labels of the time series are in local standard time. This
	// applies to files that users simulated themselves with NREL's tools, but not to published
	// files.
	LocalLabels bool
	// Column is the name of the column with the energy in kWh. The default is NRELColumn.
	Column string
	// Weather selects the weather file if there are several; "none" reads no weather.
	Weather string
}

// NRELColumn is the default energy column: the building's total electricity.
const NRELColumn = "out.electricity.total.energy_consumption"

// eastern is the clock of the published labels.
var eastern = time.FixedZone("EST", -5*3600)

// Open indexes a folder, and reads the metadata and the weather. The time series are read by
// Import.Each.
func (n NREL) Open(dir string) (*Import, error) {
	paths, err := folder(dir, ".parquet", ".csv", ".csv.gz")
	if err != nil {
		return nil, err
	}
	var files []source
	for _, p := range paths {
		files = append(files, fileSource(p))
	}
	return n.open(files)
}

func (n NREL) open(files []source) (*Import, error) {
	zone, err := loadZone(n.Zone)
	if n.Zone == "" {
		err = errors.New("the buildings' time zone is missing: set it, for example to America/Los_Angeles")
	}
	if err != nil {
		return nil, err
	}
	n.Column = cmp.Or(n.Column, NRELColumn)
	out := &Import{
		About:     "simulated buildings (NREL, End-Use Load Profiles for the U.S. Building Stock)",
		Generated: true, Zone: n.Zone,
	}
	found, err := n.sort(files, out)
	if err != nil {
		return nil, err
	}
	out.Meters = len(found.buildings)
	stock := &nrelStock{NREL: n, zone: zone, out: out, buildings: found.buildings}
	if err := stock.number(); err != nil {
		return nil, err
	}
	if err := stock.first(); err != nil {
		return nil, err
	}
	for _, s := range found.metadata {
		if err := s.read(table.Format{}, stock.readMetadata); err != nil {
			return nil, err
		}
	}
	stock.nameStatics()
	if err := stock.readWeather(found.weather); err != nil {
		return nil, err
	}
	out.each = stock.each
	return out, nil
}

// nrelFiles contains the files of a folder by kind.
type nrelFiles struct{ buildings, metadata, weather []source }

// sort determines the kind of each file from its columns.
func (n NREL) sort(files []source, out *Import) (found nrelFiles, err error) {
	other := 0
	for _, s := range files {
		err := s.read(table.Format{}, func(t table.Table) error {
			has := func(names ...string) bool {
				return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(t.Columns(), name) })
			}
			switch {
			case has("timestamp") && has(n.Column, n.Column+"..kwh"):
				found.buildings = append(found.buildings, s)
			case has("bldg_id") && has("in.sqft", "in.sqft..ft2"):
				found.metadata = append(found.metadata, s)
			case has("date_time") && weatherColumn(t, nrelWeather[0].theirs) >= 0:
				found.weather = append(found.weather, s)
			default:
				other++
			}
			return nil
		})
		if err != nil {
			return found, err
		}
	}
	if other > 0 {
		out.note("left out %d of %d files because they are neither time series with %s nor metadata nor weather", other, len(files), n.Column)
	}
	if len(found.buildings) == 0 {
		return found, fmt.Errorf("found no time series in %d files: want a table with columns timestamp and %s", len(files), n.Column)
	}
	return found, nil
}

func weatherColumn(t table.Table, begin string) int {
	return slices.IndexFunc(t.Columns(), func(c string) bool { return strings.HasPrefix(c, begin) })
}

// nrelStock contains the buildings of an import.
type nrelStock struct {
	NREL
	zone      *time.Location
	out       *Import
	buildings []source
	ids       []string
	upgrade   string // the upgrade number in the file names, or empty
	times     times  // how to read the times of the time series
	from, to  int64  // Unix times of the simulated year; the publisher moved the rows outside it
	year      int
	metadata  map[string]*nrelBuilding
	statics   []int // indexes into nrelStatics of the values that at least one building has
}

type nrelBuilding struct {
	labels  []string
	statics []float32
}

// nrelFile matches the name of a building's file: its number and the upgrade number.
var nrelFile = regexp.MustCompile(`^(\d+)-(\d+)$`)

// number determines the building number of each file from the file's name or the column
// bldg_id.
func (n *nrelStock) number() error {
	seen := map[string]string{}
	for _, s := range n.buildings {
		var id string
		if m := nrelFile.FindStringSubmatch(s.stem()); m != nil {
			id = m[1]
			if n.upgrade != "" && n.upgrade != m[2] {
				return fmt.Errorf("the time series are from upgrades %s and %s; import them separately", n.upgrade, m[2])
			}
			n.upgrade = m[2]
		} else {
			err := s.read(table.Format{}, func(t table.Table) error {
				c := slices.Index(t.Columns(), "bldg_id")
				if c < 0 {
					return errors.New("the file does not show its building; name the file like 123-0.parquet, or add a column bldg_id")
				}
				return t.Each([]int{c}, func(cells []table.Cell) error {
					id = string(cells[0].Name())
					return errEnough
				})
			})
			if err != nil {
				return err
			}
		}
		if first, ok := seen[id]; ok {
			return fmt.Errorf("%s and %s are for the same building, %s", first, s.name, id)
		}
		seen[id] = s.name
		n.ids = append(n.ids, id)
	}
	return nil
}

// first determines the interval and the year from the first time series.
func (n *nrelStock) first() error {
	n.times = times{clock: eastern, end: true}
	if n.LocalLabels {
		n.times.clock = series.StandardTime(n.zone)
	}
	s := n.buildings[0]
	var start int64
	err := s.read(table.Format{}, func(t table.Table) error {
		var err error
		n.times.interval, start, err = commonStep(t, slices.Index(t.Columns(), "timestamp"), -1, n.times.clock)
		return err
	})
	if err != nil {
		return err
	}
	n.out.Interval = n.times.interval
	// The first label is the end of the first interval.
	n.year = time.Unix(start-int64(n.times.interval/time.Second), 0).In(n.times.clock).Year()
	if n.LocalLabels {
		n.from, n.to = -1<<62, 1<<62
		return nil
	}
	// The rows that the publisher moved are before the local new year (in zones west of Eastern
	// time) or after the next new year (in zones east of Eastern time).
	local := series.StandardTime(n.zone)
	n.from, n.to = time.Date(n.year, 1, 1, 0, 0, 0, 0, local).Unix(), time.Date(n.year+1, 1, 1, 0, 0, 0, 0, local).Unix()
	if moved := n.from - time.Date(n.year, 1, 1, 0, 0, 0, 0, eastern).Unix(); moved > 0 {
		n.out.note("left out the first %s of each building because the publisher moved them there from the end of the year", time.Duration(moved)*time.Second)
	}
	return nil
}

// readMetadata reads a table of buildings. A building may have several rows, one for each
// county that it represents.
func (n *nrelStock) readMetadata(t table.Table) error {
	if n.metadata == nil {
		n.metadata = map[string]*nrelBuilding{}
	}
	columns := []int{slices.Index(t.Columns(), "bldg_id"), slices.Index(t.Columns(), "upgrade")}
	if columns[1] < 0 {
		columns[1] = columns[0]
	}
	upgrades := columns[1] != columns[0] && n.upgrade != ""
	for _, l := range nrelLabels {
		columns = append(columns, firstColumn(t, l.theirs))
	}
	var factors []float64
	for _, s := range nrelStatics {
		c := -1
		for _, theirs := range s.theirs {
			if c = slices.Index(t.Columns(), theirs.name); c >= 0 {
				factors = append(factors, theirs.factor)
				break
			}
		}
		if columns = append(columns, c); c < 0 {
			factors = append(factors, math.NaN())
		}
	}
	// In place of a missing column, the first column is read, and its values are ignored.
	there := make([]bool, len(columns))
	for i, c := range columns {
		if there[i] = c >= 0; !there[i] {
			columns[i] = columns[0]
		}
	}
	wanted := map[string]bool{}
	for _, id := range n.ids {
		wanted[id] = true
	}
	return t.Each(columns, func(cells []table.Cell) error {
		id := string(cells[0].Name())
		if !wanted[id] || upgrades && string(cells[1].Name()) != n.upgrade {
			return nil
		}
		b := &nrelBuilding{}
		for i := range nrelLabels {
			label := ""
			if there[2+i] {
				label = string(cells[2+i].Name())
			}
			b.labels = append(b.labels, label)
		}
		for i := range nrelStatics {
			v := math.NaN()
			if k := 2 + len(nrelLabels) + i; there[k] {
				var err error
				if v, err = cells[k].Value(); err != nil {
					return fmt.Errorf("building %s: %s: %w", id, nrelStatics[i].name, err)
				}
			}
			b.statics = append(b.statics, float32(v*factors[i]))
		}
		if first := n.metadata[id]; first != nil {
			for i := range first.labels {
				if first.labels[i] != b.labels[i] {
					first.labels[i] = ""
				}
			}
			return nil
		}
		n.metadata[id] = b
		return nil
	})
}

func firstColumn(t table.Table, names []string) int {
	for _, name := range names {
		if c := slices.Index(t.Columns(), name); c >= 0 {
			return c
		}
	}
	return -1
}

// nameStatics records the labels and static values that at least one building has.
func (n *nrelStock) nameStatics() {
	if len(n.metadata) == 0 {
		n.out.note("there is no metadata for these buildings, so their areas are unknown")
		return
	}
	for _, l := range nrelLabels {
		n.out.LabelNames = append(n.out.LabelNames, l.name)
	}
	for i, s := range nrelStatics {
		for _, b := range n.metadata {
			if !series.Missing(b.statics[i]) {
				n.statics = append(n.statics, i)
				n.out.StaticNames = append(n.out.StaticNames, s.name)
				break
			}
		}
	}
	if unknown := len(n.ids) - len(n.metadata); unknown > 0 {
		n.out.note("%d of %d buildings have no metadata", unknown, len(n.ids))
	}
}

// readWeather reads the weather file. All meters of a dataset share the weather.
func (n *nrelStock) readWeather(files []source) error {
	if n.Weather == "none" {
		return nil
	}
	if n.Weather != "" {
		if i := slices.IndexFunc(files, func(s source) bool { return s.name == filepath.Base(n.Weather) }); i >= 0 {
			files = files[i : i+1]
		} else {
			files = []source{fileSource(n.Weather)}
		}
	}
	if len(files) == 0 {
		n.out.note("there is no weather file")
		return nil
	}
	if len(files) > 1 {
		var names []string
		for _, s := range files {
			names = append(names, s.name)
		}
		return fmt.Errorf("there are weather files for several counties, but all meters of a dataset share one: choose %s, or none", shorten(names, 8))
	}
	w := weatherReader{times: times{clock: series.StandardTime(n.zone), end: true}, from: -1 << 62, to: 1 << 62}
	err := files[0].read(table.Format{}, func(t table.Table) error {
		at := slices.Index(t.Columns(), "date_time")
		if at < 0 {
			return fmt.Errorf("there is no column date_time; the columns are %s", list(t))
		}
		w.times.interval = time.Hour
		var (
			names   []string
			columns []int
		)
		for _, c := range nrelWeather {
			if i := weatherColumn(t, c.theirs); i >= 0 {
				names, columns = append(names, c.name), append(columns, i)
			}
		}
		return w.read(t, at, names, columns)
	})
	if err != nil {
		return err
	}
	weather, err := w.weather(n.out.Interval)
	if err != nil {
		return fmt.Errorf("%s: %w", files[0].name, err)
	}
	if year := time.Unix(weather.Start, 0).In(w.times.clock).Year(); year != n.year {
		return fmt.Errorf("%s: the weather starts in %d, but the load in %d; a typical meteorological year does not match the load: choose none", files[0].name, year, n.year)
	}
	n.out.Weather = weather
	return nil
}

// each reads the buildings one at a time and calls emit for each.
func (n *nrelStock) each(emit func(series.Meter, []string) error) error {
	faulty := 0
	for i, s := range n.buildings {
		l := loadReader{
			builder: series.NewBuilder(n.times.interval), times: n.times, from: n.from, to: n.to,
			scale: powerScale("kWh", n.times.interval),
		}
		err := s.read(table.Format{}, func(t table.Table) error {
			c := loadColumns{
				time: slices.Index(t.Columns(), "timestamp"), load: firstColumn(t, []string{n.Column, n.Column + "..kwh"}),
				date: -1, meter: -1, quality: -1,
			}
			return l.read(t, c, n.ids[i])
		})
		if err != nil {
			return err
		}
		meters, err := l.builder.Meters()
		if err == nil && len(meters) == 0 {
			err = errors.New("the file has no rows")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		m := meters[0]
		if m.Faults.Conflicts+m.Faults.OffGrid > 0 {
			faulty++
		}
		b := n.metadata[m.ID]
		if b == nil {
			b = &nrelBuilding{
				labels:  make([]string, len(n.out.LabelNames)),
				statics: slices.Repeat([]float32{float32(math.NaN())}, len(nrelStatics)),
			}
		}
		for _, k := range n.statics {
			m.Static = append(m.Static, b.statics[k])
		}
		if err := emit(m, b.labels); err != nil {
			return err
		}
	}
	if faulty > 0 {
		n.out.note("%d of %d buildings have rows that contradict each other or are between two steps; these rows were dropped", faulty, len(n.buildings))
	}
	return nil
}
