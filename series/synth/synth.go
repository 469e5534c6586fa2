// Package synth generates synthetic electricity load of commercial buildings, for
// demonstrations, tests and simulations of large fleets. Programs that store or print the data
// must label it with Notice.
//
// Buildings have the 14 types of NREL's ComStock. Within a type, they differ in size,
// intensity, opening hours, response to weather and regularity. Load is the sum of a base load,
// a load that follows occupancy, ventilation, and cooling and heating with a thermal lag. All
// buildings share the same weather. Days and hours vary randomly, and there are holidays,
// school breaks, unusual days and meter faults.
//
// For one Version, the same Config gives the same bytes on every platform. All arithmetic uses
// float64 with +, -, *, / and square roots. A product that is an operand of an addition is
// written float64(x*y). The conversion prevents the compiler from fusing the two operations,
// which it would do on arm64. The exponentials and sines of package math differ between
// platforms, so random.go contains its own versions.
package synth

import (
	"cmp"
	"fmt"
	"math"
	"time"
	_ "time/tzdata" // use the same zones on every machine, even without a zone database
)

// Notice is the label that programs must add to synthetic data wherever they show or store
// it.
const Notice = "synthetic data, not measurements"

// Increase Version with every change that makes the same Config give different numbers.
const Version = 1

const (
	quarter    = 15 * time.Minute // the internal step; an hourly value is the mean of four
	dayQuarter = 96
	maxMeters  = 1_000_000 // an ID has six digits
	maxDays    = 3660
)

// Config describes the data to generate. If Start, Days, Interval or Zone is zero, its default
// is used. Faults with a share of zero do not occur.
type Config struct {
	Seed     uint64
	Meters   int           // buildings, numbered from 0
	Start    time.Time     // first midnight in Zone; default 2018-01-01
	Days     int           // local calendar days; default 365
	Interval time.Duration // 15 minutes or an hour; default an hour
	Zone     string        // IANA name, whose legal clock people follow; default America/Chicago
	Faults   Faults
}

// Faults are the shares of intervals with a faulty reading, averaged over meters. Some meters
// are much worse than others.
type Faults struct {
	Gap    float64 // missing readings, one interval at a time
	Outage float64 // readings that are missing for 2 to 48 hours
	Stuck  float64 // the previous reading is repeated for 2 to 24 hours
	Spike  float64 // readings of three to ten times the true value
}

// ModestFaults returns the faults of a well-maintained fleet. In such a fleet, 0.6 % of the
// readings are missing and 0.1 % are stuck, and a meter with hourly readings has about one
// spike in four years.
func ModestFaults() Faults {
	return Faults{Gap: 0.002, Outage: 0.004, Stuck: 0.001, Spike: 0.00003}
}

func (f Faults) sum() float64 { return f.Gap + f.Outage + f.Stuck + f.Spike }

// Building describes a generated building. Areas are in square metres.
type Building struct {
	ID           string // such as gen_small-office_000123
	Type         string // one of Types
	FloorArea    float64
	WallArea     float64 // outside walls, windows included
	WindowArea   float64
	Floors       int
	Occupants    int // at full occupancy
	ElectricHeat bool
}

// Generator generates the buildings and the weather of a Config. It is safe for concurrent
// use, and its memory does not grow with Meters.
type Generator struct {
	config  Config
	start   time.Time // UTC
	steps   int       // intervals
	per     int       // quarter hours in an interval
	days    []day
	slot    []uint8 // local quarter hour of the day, per quarter hour
	climate climate
	weather Weather
}

// New checks the config and returns its generator. It computes the calendar and the
// weather.
func New(c Config) (*Generator, error) {
	c.Zone = cmp.Or(c.Zone, "America/Chicago")
	zone, err := time.LoadLocation(c.Zone)
	if err != nil || c.Zone == "Local" {
		return nil, fmt.Errorf("synth: time zone %q is unknown; give an IANA name such as America/Chicago, and install tzdata if this machine has no time zone database", c.Zone)
	}
	if c.Start.IsZero() {
		c.Start = time.Date(2018, 1, 1, 0, 0, 0, 0, zone)
	}
	c.Days = cmp.Or(c.Days, 365)
	c.Interval = cmp.Or(c.Interval, time.Hour)
	c.Start = c.Start.In(zone)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	y, m, d := c.Start.Date()
	end := midnight(y, m, d+c.Days, zone)
	g := &Generator{
		config: c,
		start:  c.Start.UTC(),
		steps:  int(end.Sub(c.Start) / c.Interval),
		per:    int(c.Interval / quarter),
	}
	g.days, g.slot = calendar(c.Start, g.steps*g.per)
	g.climate = newClimate(c.Seed, c.Start, g.steps*g.per)
	g.weather = g.climate.means(g.per)
	return g, nil
}

// check validates a config whose defaults are filled in and whose Start is in its zone.
func (c Config) check() error {
	y, m, d := c.Start.Date()
	switch first := midnight(y, m, d, c.Start.Location()); {
	case c.Meters < 1 || c.Meters > maxMeters:
		return fmt.Errorf("%d meters are not possible; give a number from 1 to %d", c.Meters, maxMeters)
	case !c.Start.Equal(first):
		return fmt.Errorf("the start is %s in %s, not midnight: give the first moment of a day there, such as %s",
			c.Start.Format("2006-01-02 15:04:05"), c.Zone, first.Format(time.RFC3339))
	case c.Days < 1 || c.Days > maxDays:
		return fmt.Errorf("%d days are not possible; give a number from 1 to %d", c.Days, maxDays)
	case c.Interval != quarter && c.Interval != time.Hour:
		return fmt.Errorf("an interval of %s is not possible; give %s or %s", c.Interval, quarter, time.Hour)
	}
	for _, f := range []struct {
		name  string
		share float64
	}{{"gap", c.Faults.Gap}, {"outage", c.Faults.Outage}, {"stuck", c.Faults.Stuck}, {"spike", c.Faults.Spike}} {
		if !(f.share >= 0 && f.share <= 1) {
			return fmt.Errorf("a %s share of %v is not possible; give a share of all intervals, such as 0.002 for 0.2 %%, or 0 for none", f.name, f.share)
		}
	}
	if s := c.Faults.sum(); s > 0.2 {
		return fmt.Errorf("the shares of faults sum to %v, which is more than a fifth of all readings; lower the shares", s)
	}
	return nil
}

// midnight returns the first moment of a local day. It need not be 0:00, because clocks in some
// zones skip midnight or show it twice when daylight saving begins or ends.
func midnight(y int, m time.Month, d int, zone *time.Location) time.Time {
	noon := time.Date(y, m, d, 12, 0, 0, 0, zone)
	today := func(t time.Time) bool { return t.YearDay() == noon.YearDay() }
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	for !today(t) {
		t = t.Add(quarter)
	}
	for today(t.Add(-quarter)) {
		t = t.Add(-quarter)
	}
	return t
}

// Config returns the config with its defaults filled in.
func (g *Generator) Config() Config { return g.config }

// Len returns the number of intervals between the first and the last local midnight. Days may
// have 23, 24 or 25 hours.
func (g *Generator) Len() int { return g.steps }

// Time returns the start of interval k, in UTC.
func (g *Generator) Time(k int) time.Time {
	return g.start.Add(time.Duration(k) * g.config.Interval)
}

// Weather returns the weather that all buildings share. The caller must not change it.
func (g *Generator) Weather() Weather { return g.weather }

// Building returns building i. Unless load is nil, it writes the mean load of each interval in
// kW to load, or NaN where a reading is missing. The result does not depend on earlier calls.
// Without faults, an hourly load is the mean of the four quarter hours that the same seed
// gives, and increasing Days only appends readings. Readings are multiples of 0.001 kW for
// buildings rated below 10 kW, of 0.01 kW below 100 kW, and of 0.1 kW otherwise. Building
// panics if i is not below Meters, or if the length of load is not Len.
func (g *Generator) Building(i int, load []float32) Building {
	if i < 0 || i >= g.config.Meters {
		panic(fmt.Sprintf("synth: building %d of %d", i, g.config.Meters))
	}
	if load != nil && len(load) != g.steps {
		panic(fmt.Sprintf("synth: room for %d intervals of %d", len(load), g.steps))
	}
	var b traits
	b.draw(g.config.Seed, i)
	if load != nil {
		g.fill(&b, i, load)
		g.fail(&b, i, load)
	}
	return Building{
		ID:           fmt.Sprintf("gen_%s_%06d", b.kind.name, i),
		Type:         b.kind.name,
		FloorArea:    math.Round(b.floor),
		WallArea:     math.Round(b.wall),
		WindowArea:   math.Round(b.window),
		Floors:       b.floors,
		Occupants:    b.occupants,
		ElectricHeat: b.heat > 0,
	}
}
