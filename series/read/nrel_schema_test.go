package read

import (
	"math"
	"slices"
	"testing"
	"time"
)

// The following rows have the column names and types of the published files. The published
// files have more end uses and more parameters. These are all numbers, with names in the same
// format.
type (
	// comstock2023 is a row of 2023/comstock_amy2018_release_1, whose names have no units.
	comstock2023 struct {
		Time       int64   `parquet:"timestamp,timestamp(microsecond:local)"`
		Sums       int32   `parquet:"models_used"`
		Area       float64 `parquet:"floor_area_represented"`
		Cooling    float64 `parquet:"out.district_cooling.cooling.energy_consumption"`
		Fans       float64 `parquet:"out.electricity.fans.energy_consumption"`
		Lights     float64 `parquet:"out.electricity.interior_lighting.energy_consumption"`
		Total      float64 `parquet:"out.electricity.total.energy_consumption"`
		Gas        float64 `parquet:"out.natural_gas.total.energy_consumption"`
		SiteEnergy float64 `parquet:"out.site_energy.total.energy_consumption"`
	}
	buildings2023 struct {
		Building int64   `parquet:"bldg_id"`
		Upgrade  int64   `parquet:"upgrade"`
		Weight   float64 `parquet:"weight"`
		Sqft     float64 `parquet:"in.sqft"`
		Type     string  `parquet:"in.comstock_building_type"`
		State    string  `parquet:"in.state"`
		County   string  `parquet:"in.nhgis_county_gisjoin"`
		Built    int64   `parquet:"in.year_built"`
		Tons     float64 `parquet:"out.params.cooling_equipment_capacity..tons"`
		Heating  float64 `parquet:"out.params.heating_equipment..kbtu_per_hr"`
		Roof     float64 `parquet:"out.params.ext_roof_area..m2"`
		Wall     float64 `parquet:"out.params.ext_wall_area..m2"`
		Window   float64 `parquet:"out.params.ext_window_area..m2"`
		Annual   float64 `parquet:"out.electricity.total.energy_consumption..kwh"`
	}
	// comstock2024 is a row of 2024/comstock_amy2018_release_1, whose names end with units.
	comstock2024 struct {
		Building int64   `parquet:"bldg_id"`
		Upgrade  int64   `parquet:"upgrade"`
		Time     int64   `parquet:"timestamp,timestamp(microsecond:local)"`
		Fans     float64 `parquet:"out.electricity.fans.energy_consumption..kwh"`
		Total    float64 `parquet:"out.electricity.total.energy_consumption..kwh"`
	}
	buildings2024 struct {
		Building int64   `parquet:"bldg_id"`
		Upgrade  int64   `parquet:"upgrade"`
		Sqft     float64 `parquet:"in.sqft..ft2"`
		Type     string  `parquet:"in.comstock_building_type"`
		Built    int64   `parquet:"in.year_built"`
	}
	// resstock2024 is a building of 2024/resstock_amy2018_release_2.
	resstock2024 struct {
		Building int64   `parquet:"bldg_id"`
		Sqft     float64 `parquet:"in.sqft..ft2"`
		Type     string  `parquet:"in.geometry_building_type_recs"`
		Cooling  float64 `parquet:"out.params.size_cooling_system_primary..kbtu_per_hr"`
		Heating  float64 `parquet:"out.params.size_heating_system_primary..kbtu_per_hr"`
		Wall     float64 `parquet:"out.params.wall_area_above_grade_exterior..ft2"`
	}
)

// quarters calls row for each label of the first 25 hours of 2018.
func quarters(row func(micros int64, i int)) {
	for i := range 100 {
		row(time.Date(2018, 1, 1, 0, 15*(i+1), 0, 0, time.UTC).UnixMicro(), i)
	}
}

// TestNRELReleases imports files in the schemas of published releases.
func TestNRELReleases(t *testing.T) {
	var load2023 []comstock2023
	quarters(func(at int64, i int) {
		load2023 = append(load2023, comstock2023{Time: at, Total: float64(i), Fans: -1})
	})
	var load2024 []comstock2024
	quarters(func(at int64, i int) { load2024 = append(load2024, comstock2024{15227, 0, at, -1, float64(i)}) })

	for name, c := range map[string]struct {
		files   []source
		names   []string
		statics []float64
		label   string
	}{
		"ComStock 2023": {
			[]source{
				inMemory("15227-10.parquet", parquetFile(t, load2023)),
				inMemory("CA_upgrade10_metadata_and_annual_results.parquet", parquetFile(t, []buildings2023{
					{15226, 10, 1, 1, "Hospital", "CA", "G0600010", 1950, 1, 1, 1, 1, 1, 1},
					{15227, 10, 1, 10000, "FullServiceRestaurant", "CA", "G0600370", 1984, 100, 1000, 900, 500, 50, 1e6},
				})),
				inMemory("G0600370_2018.csv", nrelWeatherText),
			},
			[]string{"floor_area", "wall_area", "window_area", "roof_area", "cooling_capacity", "heating_capacity", "year_built"},
			[]float64{929.0304, 500, 50, 900, 351.685, 293.071, 1984},
			"FullServiceRestaurant",
		},
		"ComStock 2024": {
			[]source{
				inMemory("15227-0.parquet", parquetFile(t, load2024)),
				inMemory("CA_baseline_metadata_and_annual_results.parquet", parquetFile(t, []buildings2024{{15227, 0, 10000, "SmallOffice", 2001}})),
			},
			[]string{"floor_area", "year_built"},
			[]float64{929.0304, 2001},
			"SmallOffice",
		},
		"ResStock 2024": {
			[]source{
				inMemory("15227-0.parquet", parquetFile(t, load2024)),
				inMemory("CA_baseline_metadata_and_annual_results.parquet", parquetFile(t, []resstock2024{{15227, 1000, "Mobile Home", 36, 60, 100}})),
			},
			[]string{"floor_area", "wall_area", "cooling_capacity", "heating_capacity"},
			[]float64{92.90304, 9.290304, 10.5506, 17.5843},
			"Mobile Home",
		},
	} {
		in, err := NREL{Zone: "America/Los_Angeles"}.open(c.files)
		meters, labels, _, err := imported(in, err)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// Rows 0 to 11 were moved from the end of the year, because California is three hours
		// behind Eastern Standard Time. The energy of a quarter hour in kWh is a quarter of
		// its mean power in kW.
		m := meters[0]
		if m.ID != "15227" || time.Unix(m.Start, 0).UTC().Format(time.RFC3339) != "2018-01-01T08:00:00Z" || len(m.Load) != 88 || m.Load[0] != 48 {
			t.Errorf("%s: %s starts at %s with %v", name, m.ID, time.Unix(m.Start, 0).UTC(), m.Load)
		}
		if !slices.Equal(in.StaticNames, c.names) || labels[0][0] != c.label {
			t.Errorf("%s: %v, %v", name, in.StaticNames, labels)
			continue
		}
		for i, want := range c.statics {
			if got := float64(m.Static[i]); math.Abs(got-want) > 1e-4*want {
				t.Errorf("%s: %s is %v, not %v", name, c.names[i], got, want)
			}
		}
	}
}
