package quality_test

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series/quality"
	"loadstar/series/read"
)

// table reads a CSV file into a map from the first column to the row.
func table(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, row := range rows[1:] {
		cells := map[string]string{}
		for i, name := range rows[0] {
			cells[name] = row[i]
		}
		out[row[0]] = cells
	}
	return out
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCheckRealSets checks the datasets of the data pack. The reports must contain the
// faults that the datasets' READMEs name, and the counts must agree with the datasets'
// metadata.
func TestCheckRealSets(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the whole data pack")
	}
	type result struct {
		meters map[string]quality.MeterReport
		fleet  quality.FleetReport
		table  map[string]map[string]string
	}
	run := func(t *testing.T, name, dir string) result {
		t.Helper()
		path, root := testkit.Dataset(t, name)
		desc, err := read.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := read.Open(desc, root)
		if err != nil {
			t.Fatal(err)
		}
		reports, fleet := checkAll(t, d)
		r := result{map[string]quality.MeterReport{}, fleet, table(t, filepath.Join(root, dir, "meters.csv"))}
		for _, m := range reports {
			r.meters[m.ID] = m
		}
		return r
	}
	counts := func(r result, code quality.Code) (all, bad int) {
		for _, c := range r.fleet.Codes {
			if c.Code == code {
				return c.Meters(), c.Problems + c.Warnings
			}
		}
		return 0, 0
	}
	has := func(t *testing.T, r result, id string, code quality.Code) {
		t.Helper()
		get(t, r.meters[id].Findings, code)
	}

	t.Run("cambridge", func(t *testing.T) {
		r := run(t, "cambridge", "cambridge-estates")
		if len(r.meters) != 114 {
			t.Fatalf("%d meters", len(r.meters))
		}
		for id, row := range r.table {
			m := r.meters[id]
			if want := int(number(t, row["n_rows"]) - number(t, row["n_missing"])); m.Present != want {
				t.Errorf("%s: %d present, want %d", id, m.Present, want)
			}
			if want := int(number(t, row["n_zero"])); m.Zeros != want {
				t.Errorf("%s: %d zeros, want %d", id, m.Zeros, want)
			}
		}
		// "The first hour of each year holds only one half-hour": the check needs two
		// years to detect it.
		if all, _ := counts(r, "year-start"); all < 90 {
			t.Errorf("only %d meters have an unusual first hour of the year", all)
		}
		if f := get(t, r.meters["cam_b0"].Findings, "year-start"); f.Count != 7 || f.Where[0].Time.Format(time.RFC3339) != "2013-01-01T00:00:00Z" || math.Abs(f.Where[0].Size-0.5) > 0.01 {
			t.Errorf("cam_b0: %+v", f)
		}
		// "Small buildings keep their zeros": these buildings have zeros for whole days.
		for _, id := range []string{"cam_b10", "cam_b18", "cam_b84", "cam_b106", "cam_b117"} {
			has(t, r, id, "zeros-as-gaps")
		}
		has(t, r, "cam_b55", "zeros") // closed at night
		// "A building may lack whole years."
		if g := r.meters["cam_b68"].Gaps; g.Longest < 4*365*24 {
			t.Errorf("cam_b68: the longest gap has %d steps", g.Longest)
		}
		// "Spikes up to 10x the mean exist (the source clips there)."
		has(t, r, "cam_b103", "impossible")
		f := get(t, r.meters["cam_b112"].Findings, "clipped")
		if math.Abs(f.Where[0].Size/r.meters["cam_b112"].Level.Mean-10) > 2 {
			t.Errorf("cam_b112 is clipped at %g kW, ten times its mean is %g", f.Where[0].Size, 10*r.meters["cam_b112"].Level.Mean)
		}
		// Labels are UTC, but the university follows daylight saving.
		if f := get(t, r.fleet.Findings, "clock-shift"); !strings.Contains(f.Message, "Europe/London") {
			t.Errorf("%+v", f)
		}
		// The wind column has 1,181 missing values.
		if f := get(t, r.fleet.Findings, "weather"); f.Count != 1181 {
			t.Errorf("%+v", f)
		}
	})

	for _, site := range []string{"hog", "robin"} {
		t.Run(site, func(t *testing.T) {
			r := run(t, site, "bdg2-hog-robin")
			for id, row := range r.table {
				m, ok := r.meters[id]
				if row["group"] != site {
					continue
				}
				if !ok || m.Present != 17544 || m.Gaps.Count != 0 || math.Abs(m.Repeats-number(t, row["frac_repeat"])) > 0.00051 {
					t.Errorf("%s: %d present, %d gaps, %.4f repeated, want %s", id, m.Present, m.Gaps.Count, m.Repeats, row["frac_repeat"])
				}
			}
			// "No missing values: whoever made the extracts kept complete meters or
			// filled gaps": the flat lines are filled gaps.
			if all, _ := counts(r, "flat"); all < 25 {
				t.Errorf("%d meters with flat lines", all)
			}
			// "Local clock of the site": the labels include the hours that this clock skips and
			// repeats.
			has(t, r, r.meters[firstKey(r.meters)].ID, "clock-change")
			if site == "robin" {
				if f := get(t, r.meters["Robin_office_Lindsay"].Findings, "flat"); f.Severity != quality.Problem || r.meters["Robin_office_Lindsay"].Flat.Longest != 5195 {
					t.Errorf("Lindsay: %+v", f)
				}
				get(t, r.fleet.Findings, "shared-flat")
			} else if f := get(t, r.fleet.Findings, "clock-change"); f.Count != 49 {
				t.Errorf("%+v", f)
			}
		})
	}

	for _, state := range []string{"ca", "tx", "vt"} {
		t.Run("resstock-"+state, func(t *testing.T) {
			r := run(t, "resstock-"+state, "resstock-ca-tx-vt")
			// "No gaps (simulation)": there are few other findings.
			if r.fleet.Coverage != 1 || r.fleet.Problems > 0 || r.fleet.Warnings > 2 || len(r.fleet.Findings) > 0 {
				t.Errorf("%+v", r.fleet)
			}
		})
	}

	t.Run("sgsc", func(t *testing.T) {
		r := run(t, "sgsc", "sgsc-households")
		for id, row := range r.table {
			m := r.meters[id]
			if want := int(number(t, row["n_hours"]) - number(t, row["n_missing_hours"])); m.Present != want {
				t.Errorf("%s: %d present, want %d", id, m.Present, want)
			}
		}
		if all, bad := counts(r, "gaps"); all < 70 || bad != 10 {
			t.Errorf("%d meters with gaps, %d of them with many", all, bad)
		}
		// Some homes were empty for months, which looks like gaps filled with zeros.
		if _, bad := counts(r, "zeros-as-gaps"); bad < 20 {
			t.Errorf("%d meters with long zeros", bad)
		}
		// The labels are in standard time, although the source says otherwise.
		if f := get(t, r.fleet.Findings, "clock-shift"); !strings.Contains(f.Message, "Australia/Sydney") {
			t.Errorf("%+v", f)
		}
	})
}

func firstKey[V any](m map[string]V) string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return slices.Min(keys)
}
