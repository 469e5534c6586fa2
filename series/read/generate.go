package read

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/series"
	"loadstar/series/synth"
)

// validateGenerate checks a description of generated data, which has no tables, and fills in
// what the generator determines.
func (d *Description) validateGenerate() error {
	if !d.Generated {
		return errors.New("generate: generated data must be marked: add generated: true")
	}
	s, err := synth.OpenStock(d.Generate)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	other := d.Rooted || d.Clock+d.Stamp+d.Unit+d.Reading+d.From+d.To != "" || len(d.Load.Files) > 0 || d.Weather != nil || d.Meters != nil
	for _, f := range []struct {
		field *string
		is    string
	}{{&d.Zone, s.Zone}, {&d.Country, synth.Country}, {&d.Interval, textfmt.Duration(s.Interval)}} {
		*f.field = cmp.Or(*f.field, f.is)
		other = other || *f.field != f.is
	}
	if other {
		return errors.New("generate: the generator determines times, units and tables: besides generate, give only name, about and generated")
	}
	return nil
}

// generate returns the generated dataset of a description. Every call recomputes it,
// which takes less time than reading a file of the same size.
func (d *Description) generate() (*series.Dataset, error) {
	s, err := synth.OpenStock(d.Generate)
	if err != nil {
		return nil, fmt.Errorf("%s: generate: %w", d.path, err)
	}
	zone, err := time.LoadLocation(s.Zone)
	if err != nil {
		return nil, err
	}
	out := series.Dataset{
		Name: d.Name, Generated: true, Interval: s.Interval, Clock: zone, Country: synth.Country, StaticNames: s.Statics,
		Weather: series.Weather{Start: s.Start, Names: s.Weather, Columns: s.WeatherColumns()},
	}
	meters := make([]series.Meter, s.Len())
	for i := range meters {
		m := series.Meter{Start: s.Start, Load: make([]float32, s.Steps())}
		b := s.Building(i, m.Load)
		m.ID, m.Static, m.Faults.Rows = b.ID, b.Static, len(m.Load)
		meters[i] = m
	}
	return series.NewDataset(out, meters)
}
