package read

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

// nrelRow is a row of a published time series, without the hundred other columns.
type nrelRow struct {
	Building int64   `parquet:"bldg_id"`
	Time     int64   `parquet:"timestamp,timestamp(microsecond:local)"`
	Heating  float64 `parquet:"out.electricity.heating.energy_consumption"`
	Total    float64 `parquet:"out.electricity.total.energy_consumption"`
}

// nrelYear returns a file with the first 25 hours of 2018 for a building, in steps of 15
// minutes. Each value is the number of its row.
func nrelYear(t *testing.T, building int64) []byte {
	t.Helper()
	var rows []nrelRow
	at := time.Date(2018, 1, 1, 0, 15, 0, 0, time.UTC)
	for i := range 100 {
		rows = append(rows, nrelRow{building, at.UnixMicro(), -1, float64(i)})
		at = at.Add(15 * time.Minute)
	}
	return parquetFile(t, rows)
}

const (
	nrelMetadata = "bldg_id,upgrade,weight,in.sqft,in.comstock_building_type,in.state,in.nhgis_county_gisjoin,out.params.ext_wall_area..m2,out.params.ext_window_area..m2\n" +
		"7,0,1,1000,Hospital,CO,G0800310,500,50\n8,0,1,2000,SmallOffice,CO,G0800310,600,\n8,0,2,2000,SmallOffice,CO,G0800010,600,\n9,0,1,1,Warehouse,CO,G0800310,1,1\n"
	nrelResStock = "bldg_id,in.sqft..ft2,in.geometry_building_type_recs,in.state,in.county,out.params.wall_area_above_grade_exterior..ft2,out.params.window_area..ft2,out.params.roof_area..ft2\n" +
		"7,1000,Mobile Home,CO,G0800310,100,10,1000\n"
	nrelWeatherText = "date_time,Dry Bulb Temperature [°C],Relative Humidity [%],Wind Speed [m/s],Wind Direction [Deg],Global Horizontal Radiation [W/m2],Direct Normal Radiation [W/m2],Diffuse Horizontal Radiation [W/m2]\n" +
		"2018-01-01 01:00:00,-5.6,43.3,6.2,360,0,0,0\n2018-01-01 02:00:00,-6,44,6,350,1,0,0\n"
)

func TestNREL(t *testing.T) {
	in, err := NREL{Zone: "America/Denver"}.open([]source{
		inMemory("7-0.parquet", nrelYear(t, 7)), inMemory("metadata.csv", nrelMetadata), inMemory("G0800310_2018.csv", nrelWeatherText), inMemory("8-0.parquet", nrelYear(t, 8)),
	})
	if err != nil {
		t.Fatal(err)
	}
	meters, labels, notes, err := imported(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if in.Interval != 15*time.Minute || !in.Generated || in.Meters != 2 || len(meters) != 2 {
		t.Errorf("%+v", in)
	}
	// Denver is two hours behind Eastern Standard Time, so rows 0 to 7 were moved. The interval
	// of row 8 ends at 02:15 EST and starts at local midnight, 07:00 UTC.
	m := meters[0]
	if m.ID != "7" || time.Unix(m.Start, 0).UTC().Format(time.RFC3339) != "2018-01-01T07:00:00Z" || len(m.Load) != 92 || m.Load[0] != 4*8 || m.Load[91] != 4*99 {
		t.Errorf("%s starts at %s with %v", m.ID, time.Unix(m.Start, 0).UTC(), m.Load)
	}
	if notes != "left out the first 2h0m0s of each building because the publisher moved them there from the end of the year" {
		t.Errorf("notes %s", notes)
	}
	if !slices.Equal(in.StaticNames, []string{"floor_area", "wall_area", "window_area"}) || !slices.Equal(in.LabelNames, []string{"building_type", "state", "county"}) {
		t.Errorf("%v, %v", in.StaticNames, in.LabelNames)
	}
	if want := []float32{92.90304, 500, 50}; !slices.Equal(m.Static, want) || !slices.Equal(labels[0], []string{"Hospital", "CO", "G0800310"}) {
		t.Errorf("%v, %v", m.Static, labels[0])
	}
	// A building that represents several counties has no county label.
	if want := []float32{185.80608, 600, float32(math.NaN())}; !slices.Equal(meters[1].Static[:2], want[:2]) || !series.Missing(meters[1].Static[2]) || labels[1][2] != "" {
		t.Errorf("%v, %v", meters[1].Static, labels[1])
	}
	// The first hour of the weather starts at local midnight and applies to four quarter hours.
	w := in.Weather
	if w.Start != m.Start || !slices.Equal(w.Names, []string{"temperature", "wind", "humidity", "solar", "direct", "diffuse", "wind_direction"}) ||
		!slices.Equal(w.Column("temperature"), []float32{-5.6, -5.6, -5.6, -5.6, -6, -6, -6, -6}) || w.Column("solar")[4] != 1 {
		t.Errorf("%+v", w)
	}
}

func TestNRELVariants(t *testing.T) {
	open := func(n NREL, files ...source) (*Import, []series.Meter, string, error) {
		in, err := n.open(files)
		meters, _, notes, err := imported(in, err)
		return in, meters, notes, err
	}
	building := inMemory("7-0.parquet", nrelYear(t, 7))
	// With labels in local standard time, no hours were moved.
	_, meters, notes, err := open(NREL{Zone: "America/Denver", LocalLabels: true}, building)
	if err != nil || time.Unix(meters[0].Start, 0).UTC().Format(time.RFC3339) != "2018-01-01T07:00:00Z" || len(meters[0].Load) != 100 {
		t.Errorf("%v, %v", meters, err)
	}
	if notes != "there is no metadata for these buildings, so their areas are unknown\nthere is no weather file" {
		t.Errorf("notes %s", notes)
	}
	// In Eastern time, no hours were moved.
	if _, meters, _, err = open(NREL{Zone: "America/New_York"}, building); err != nil || len(meters[0].Load) != 100 || meters[0].Load[0] != 0 {
		t.Errorf("%v, %v", meters, err)
	}
	// A caller may choose another end use by its column.
	if _, meters, _, err = open(NREL{Zone: "America/New_York", Column: "out.electricity.heating.energy_consumption"}, building); err != nil || meters[0].Load[5] != -4 {
		t.Errorf("%v, %v", meters, err)
	}
	// ResStock has other column names, areas in square feet, and building numbers in a
	// column.
	in, meters, notes, err := open(NREL{Zone: "America/New_York"}, inMemory("some.parquet", nrelYear(t, 7)), inMemory("other.parquet", nrelYear(t, 10)), inMemory("meta.csv", nrelResStock))
	if err != nil || meters[0].ID != "7" || !slices.Equal(in.StaticNames, []string{"floor_area", "wall_area", "window_area", "roof_area"}) || meters[0].Static[1] != 9.290304 {
		t.Errorf("%v, %v", meters, err)
	}
	if !strings.Contains(notes, "1 of 2 buildings have no metadata") || !series.Missing(meters[1].Static[0]) {
		t.Errorf("notes %s", notes)
	}
	// The metadata must be from the same upgrade as the time series.
	upgraded := "bldg_id,upgrade,in.sqft\n7,0,1000\n7,10,2000\n"
	if _, meters, _, err = open(NREL{Zone: "America/New_York"}, inMemory("7-10.parquet", nrelYear(t, 7)), inMemory("meta.csv", upgraded)); err != nil || meters[0].Static[0] != 185.80608 {
		t.Errorf("%v, %v", meters, err)
	}
	weather := func(year int) source {
		return inMemory(fmt.Sprintf("G%d.csv", year), strings.ReplaceAll(nrelWeatherText, "2018-", fmt.Sprint(year, "-")))
	}
	if in, _, _, err = open(NREL{Zone: "America/New_York", Weather: "G2018.csv"}, building, weather(2018), weather(2019)); err != nil || len(in.Weather.Names) != 7 {
		t.Error(err)
	}
	if in, _, _, err = open(NREL{Zone: "America/New_York", Weather: "none"}, building, weather(2018), weather(2019)); err != nil || in.Weather.Names != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		n     NREL
		files []source
		want  string
	}{
		{NREL{}, []source{building}, "the buildings' time zone is missing"},
		{NREL{Zone: "Denver"}, []source{building}, `zone "Denver" is unknown`},
		{NREL{Zone: "UTC"}, []source{inMemory("x.csv", nrelMetadata)}, "found no time series in 1 files"},
		{NREL{Zone: "UTC", Column: "out.x"}, []source{building}, "want a table with columns timestamp and out.x"},
		{NREL{Zone: "UTC"}, []source{building, inMemory("7-1.parquet", nrelYear(t, 7))}, "time series are from upgrades 0 and 1; import them separately"},
		{NREL{Zone: "UTC"}, []source{building, inMemory("copy.parquet", nrelYear(t, 7))}, "7-0.parquet and copy.parquet are for the same building, 7"},
		{NREL{Zone: "UTC"}, []source{building, weather(2018), weather(2019)}, "weather files for several counties, but all meters of a dataset share one: choose G2018.csv, G2019.csv, or none"},
		{NREL{Zone: "UTC"}, []source{building, weather(1997)}, "the weather starts in 1997, but the load in 2018"},
		{NREL{Zone: "UTC"}, []source{building, inMemory("meta.csv", "bldg_id,in.sqft\n7,many\n")}, `line 2: building 7: floor_area: "many" is not a number`},
		{NREL{Zone: "UTC"}, []source{inMemory("7-0.csv", "timestamp,"+NRELColumn+"\n2018-01-01 00:15,1\n")}, "no meter has two rows"},
		{NREL{Zone: "UTC"}, []source{inMemory("house.csv", "timestamp,"+NRELColumn+"\n2018-01-01 00:15,1\n")}, "the file does not show its building"},
	} {
		if _, _, _, err := open(c.n, c.files...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}
