package source

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// slack is the maximum difference between a value of the source and the group's value,
// which has three digits.
const slack = 0.00045

// hidden finds values for a home's series that round to the group's values and reproduce the
// figures in the group's meters.csv. The source's values have more digits than the group's, and
// the source's values determine the load and the figures.
type hidden struct {
	group home // the group's values
	home       // the values that were found
}

func newHidden(t *testing.T, all [][]string) *hidden {
	h := &hidden{}
	for _, row := range all {
		for i, values := range []*[]float64{&h.group.load, &h.group.plug, &h.group.water, &h.group.cooling, &h.group.heating} {
			*values = append(*values, number(t, row[i+1]))
		}
	}
	for i, values := range [][]float64{h.group.plug, h.group.water, h.group.cooling, h.group.heating} {
		*h.parts()[i] = append([]float64(nil), values...)
	}
	h.load = make([]float64, len(all))
	return h
}

func (h *hidden) parts() []*[]float64 {
	return []*[]float64{&h.plug, &h.water, &h.cooling, &h.heating}
}

// shift changes one value by delta, or by less if the value would otherwise not round to the
// group's value.
func shift(values, group []float64, hour int, delta float64) float64 {
	old := values[hour]
	values[hour] = min(max(old+delta, group[hour]-slack, 0), group[hour]+slack)
	return values[hour] - old
}

// move changes the load of an hour by changing the parts of the load, starting with parts that
// are not 0.
func (h *hidden) move(hour int, delta float64) {
	groups := [][]float64{h.group.plug, h.group.water, h.group.cooling, h.group.heating}
	weights := []float64{1, 1, 1.0 / heatPump, 1.0 / heatPump}
	for _, zeros := range []bool{false, true} {
		for i, part := range h.parts() {
			if (groups[i][hour] == 0) == zeros {
				delta -= weights[i] * shift(*part, groups[i], hour, delta/weights[i])
			}
		}
	}
}

// sum computes the loads, and adjusts loads that do not round to the group's loads.
func (h *hidden) sum() {
	for hour := range h.load {
		load := func() float64 { return h.plug[hour] + h.water[hour] + (h.cooling[hour]+h.heating[hour])/heatPump }
		if x := load(); math.Abs(x-h.group.load[hour]) > slack {
			h.move(hour, min(max(x, h.group.load[hour]-slack), h.group.load[hour]+slack)-x)
		}
		h.load[hour] = load()
	}
}

// fit adjusts values until the figures equal the figures in meters.csv.
func (h *hidden) fit(t *testing.T, meter string, want map[string]float64) {
	for range 200 {
		h.sum()
		if h.adjust(want) {
			return
		}
	}
	t.Fatalf("no values of %s give its figures", meter)
}

// adjust compares all figures, and adjusts the values from which differing figures are
// computed.
func (h *hidden) adjust(want map[string]float64) bool {
	all := func(float64) bool { return true }
	near := func(values ...float64) func(float64) bool {
		return func(x float64) bool {
			for _, value := range values {
				if math.Abs(x-value) < 1e-9 {
					return true
				}
			}
			return false
		}
	}
	ordered := append([]float64(nil), h.load...)
	s, plug := summarize(h.load), summarize(h.plug)
	quantile(ordered, 0.99)
	place := int(0.99 * float64(len(ordered)-1))
	done := true
	for _, figure := range []struct {
		name   string
		value  float64
		digits int
		values []float64
		chosen func(float64) bool
		move   func(hour int, direction float64)
	}{
		{"cooling_peak_th_kw", summarize(h.cooling).max, 2, h.cooling, near(summarize(h.cooling).max), func(hour int, d float64) { shift(h.cooling, h.group.cooling, hour, 1e-4*d) }},
		{"heating_peak_th_kw", summarize(h.heating).max, 2, h.heating, near(summarize(h.heating).max), func(hour int, d float64) { shift(h.heating, h.group.heating, hour, 1e-4*d) }},
		{"max_kw", s.max, 2, h.load, near(s.max), func(hour int, d float64) { h.move(hour, 1e-4*d) }},
		{"p99_kw", s.p99, 2, h.load, near(ordered[place], ordered[place+1]), func(hour int, d float64) { h.move(hour, 5e-5*d) }},
		{"mean_plug_kw", plug.mean, 3, h.plug, all, func(hour int, d float64) { shift(h.plug, h.group.plug, hour, 1e-5*d) }},
		{"mean_kw", s.mean, 3, h.load, all, func(hour int, d float64) {
			shift(h.cooling, h.group.cooling, hour, 3e-5*d*flagged(h.cooling[hour]))
			shift(h.heating, h.group.heating, hour, 3e-5*d*flagged(h.heating[hour]))
		}},
		{"std_kw", s.std, 3, h.load, all, func(hour int, d float64) { h.move(hour, 1e-5*d*(h.load[hour]-s.mean)/s.std) }},
	} {
		difference := want[figure.name] - round(figure.value, figure.digits)
		if difference == 0 {
			continue
		}
		done = false
		for hour, x := range figure.values {
			if figure.chosen(x) {
				figure.move(hour, math.Copysign(1, difference))
			}
		}
	}
	return done
}

// flagged is 1 unless the value is 0.
func flagged(x float64) float64 {
	if x == 0 {
		return 0
	}
	return 1
}

func writeResStock(t *testing.T, group, dir string) {
	figures := map[string]map[string]float64{}
	names := []string{"roof_area_m2", "occupants_max", "cooling_peak_th_kw", "heating_peak_th_kw", "mean_kw", "std_kw", "p99_kw", "max_kw", "mean_plug_kw"}
	for _, row := range rows(t, filepath.Join(group, "meters.csv"), append([]string{"meter_id"}, names...)...) {
		figures[row[0]] = map[string]float64{}
		for i, name := range names {
			figures[row[0]][name] = number(t, row[i+1])
		}
	}
	for _, folder := range neighborhoods {
		target := filepath.Join(dir, filepath.FromSlash(folder))
		state, _, _ := strings.Cut(filepath.Base(target), "_")
		buildings := map[string]any{}
		eachMeter(t, filepath.Join(group, "load_"+state+".csv.gz"), []string{"load_kw", "plug_kw", "dhw_kw", "cooling_th_kw", "heating_th_kw"}, func(meter string, all [][]string) {
			h := newHidden(t, all)
			h.fit(t, meter, figures[meter])
			key := "resstock-amy2018-2021-release-1-" + strings.TrimPrefix(meter, state+"_")
			put(t, filepath.Join(target, key+".csv"), h.text(figures[meter]["occupants_max"]))
			buildings[key] = map[string]any{"pv": map[string]any{"autosize_attributes": map[string]any{"roof_area": figures[meter]["roof_area_m2"] + 0.013}}}
		})
		schema, err := json.Marshal(map[string]any{"buildings": buildings})
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(target, "schema.json"), string(schema))
		put(t, filepath.Join(target, "weather.csv"), "outdoor_dry_bulb_temperature\n")
		weather := strings.Repeat("LOCATION,Burlington\n", 8)
		var lines strings.Builder
		for i, row := range rows(t, filepath.Join(group, "weather_"+state+".csv.gz"), "temp_c", "wind_ms", "rh_pct", "solar_wm2") {
			fields := make([]string, 35)
			fields[0], fields[3], fields[6], fields[21], fields[8], fields[13] = "2018", strconv.Itoa(i%24+1), row[0], row[1], row[2], row[3]
			lines.WriteString(strings.Join(fields, ",") + "\n")
		}
		put(t, filepath.Join(target, "weather.epw"), weather+lines.String())
	}
}

// text returns the home as a file of the source.
func (h *hidden) text(persons float64) string {
	var text strings.Builder
	text.WriteString("month,hour,day_type,non_shiftable_load,dhw_demand,cooling_demand,heating_demand,solar_generation,occupant_count\n")
	for hour := range h.load {
		fmt.Fprintf(&text, "1,%d,1", hour%24+1)
		for _, part := range h.parts() {
			text.WriteString("," + strconv.FormatFloat((*part)[hour], 'f', -1, 64))
		}
		fmt.Fprintf(&text, ",0.0,%v\n", persons*float64(hour%2))
	}
	return text.String()
}
