package synth

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Increase StockVersion with every change that changes a Stock's numbers.
const StockVersion = 1

// Stock is a fixed set of generated buildings in one state, with quarter-hourly loads and
// weather for a year. It replaces the buildings that a paper took from NREL's ComStock, which a
// user might not have. ComStock's loads are simulated by EnergyPlus. ComStock's schedules
// change in steps at whole hours or quarter hours, days of one type repeat, and there is little
// noise. The fleet of New imitates measured buildings instead, which are noisier and change
// gradually. A Stock is safe for concurrent use.
type Stock struct {
	Name     string
	Zone     string // IANA name; the buildings follow its legal clock
	Start    int64  // start of the first quarter hour, in Unix seconds
	Interval time.Duration
	Statics  []string // names of StockBuilding.Static
	Weather  []string // names of the columns that WeatherColumns returns

	state  *state
	plots  []plot
	seed   uint64
	days   []day
	slot   []uint8
	air    stockWeather
	sample bool
}

// StockBuilding is a building of a Stock. Areas are in square metres, capacities in kW of
// heat.
type StockBuilding struct {
	ID     string // such as ca-01-small-office
	Type   string // a ComStock type
	Static []float32
}

// sampleSuffix ends the names of samples. For bose2023, there is a stock of 42 buildings in
// each of three states, and a sample of 20 other buildings in each state for the correlations
// in the paper's table I.
const sampleSuffix = "-sample"

// Stocks returns the names of all stocks.
func Stocks() []string {
	var names []string
	for i := range states {
		names = append(names, states[i].name, states[i].name+sampleSuffix)
	}
	return names
}

// OpenStock returns the stock with a name. It computes the calendar and the weather.
func OpenStock(name string) (*Stock, error) {
	base, sample := strings.CutSuffix(name, sampleSuffix)
	i := slices.IndexFunc(states[:], func(s state) bool { return s.name == base })
	if i < 0 {
		return nil, fmt.Errorf("there is no generated stock %q; the stocks are %s", name, strings.Join(Stocks(), ", "))
	}
	st := &states[i]
	zone, err := time.LoadLocation(st.zone)
	if err != nil {
		return nil, fmt.Errorf("time zone %s is unknown; install tzdata if this machine has no time zone database", st.zone)
	}
	start := time.Date(2018, 1, 1, 0, 0, 0, 0, zone)
	s := &Stock{
		Name: name, Zone: st.zone, Start: start.Unix(), Interval: quarter,
		Statics: []string{"floor_area", "wall_area", "window_area", "cooling_capacity", "heating_capacity", "year_built"},
		Weather: []string{"temperature", "wind", "humidity", "solar", "direct", "diffuse", "wind_direction"},
		state:   st, sample: sample,
	}
	const steps = 365 * dayQuarter
	s.days, s.slot = calendar(start, steps)
	s.air = newStockWeather(st, start, steps)
	s.seed, s.plots = st.seed, st.plots()
	if sample {
		s.seed, s.plots = st.sampleSeed, st.samplePlots()
	}
	return s, nil
}

// Len returns the number of buildings.
func (s *Stock) Len() int { return len(s.plots) }

// Steps returns the number of quarter hours.
func (s *Stock) Steps() int { return len(s.slot) }

// WeatherColumns returns the columns that Weather names, in °C, m/s, per cent, W/m2 on a level
// plane, W/m2 towards the sun, W/m2 of the sky, and degrees from north. All buildings share the
// columns. The caller must not change them.
func (s *Stock) WeatherColumns() [][]float32 { return s.air.columns }

// Building returns building i. Unless load is nil, it writes the mean load of each quarter
// hour in kW to load. The result does not depend on earlier calls. It panics if there is no
// building i, or if the length of load is not Steps.
func (s *Stock) Building(i int, load []float32) StockBuilding {
	if load != nil && len(load) != len(s.slot) {
		panic(fmt.Sprintf("synth: room for %d quarter hours of %d", len(load), len(s.slot)))
	}
	var b stockTraits
	b.draw(s.state, s.seed, i, s.plots[i])
	if load != nil {
		s.fill(&b, i, load)
	}
	id := fmt.Sprintf("%s-%02d-%s", s.state.code, i+1, b.kind.name)
	if s.sample {
		id = "sample-" + id
	}
	return StockBuilding{ID: id, Type: b.kind.name, Static: []float32{
		whole(b.floor), whole(b.wall), whole(b.window), whole(b.coolCapacity), whole(b.heatCapacity), whole(b.built),
	}}
}

func whole(x float64) float32 { return float32(math.Round(x)) }
