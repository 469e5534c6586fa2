package read

import (
	"strings"
	"testing"

	"loadstar/series/synth"
)

// TestGenerated opens every description of generated data under datasets/.
func TestGenerated(t *testing.T) {
	for _, name := range synth.Stocks() {
		d, err := Load("../../datasets/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if d.Name != name || d.Generate != name {
			t.Errorf("%s generates %s", d.Name, d.Generate)
		}
		data, err := Open(d, "")
		if err != nil {
			t.Fatal(err)
		}
		want := 42
		if strings.HasSuffix(name, "-sample") {
			want = 20
		}
		if data.Len() != want || !data.Generated || data.StepsPerDay() != 96 || data.Country != "US" {
			t.Errorf("%s: %d meters, generated %v, %d steps a day, country %s", name, data.Len(), data.Generated, data.StepsPerDay(), data.Country)
		}
		for _, column := range []string{"temperature", "wind"} {
			if len(data.Weather.Column(column)) != 365*96 {
				t.Errorf("%s: %d values of %s", name, len(data.Weather.Column(column)), column)
			}
		}
		for i := range data.Len() {
			m := data.Meter(i)
			if len(m.Load) != 365*96 || m.Start != data.Weather.Start {
				t.Errorf("%s has %d readings from %d", m.ID, len(m.Load), m.Start)
			}
			if i > 0 && m.ID <= data.Meter(i-1).ID {
				t.Errorf("%s comes after %s", m.ID, data.Meter(i-1).ID)
			}
		}
	}
}

func TestGenerateRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"name: a\ngenerated: true\ngenerate: bose2023-tx\n":                                "the stocks are bose2023-ca",
		"name: a\ngenerate: bose2023-ca\n":                                                 "add generated: true",
		"name: a\ngenerated: true\ngenerate: bose2023-ca\nzone: UTC\n":                     "give only name, about and generated",
		"name: a\ngenerated: true\ngenerate: bose2023-ca\nload: {files: [load.parquet]}\n": "give only name, about and generated",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
