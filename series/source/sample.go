package source

import (
	"path/filepath"
	"slices"
	"strings"
)

// sample is the part of Cambridge's buildings that is in the repository. It contains eight of
// the 42 complete buildings, from 4 to 1060 kW, and covers 14 months with only six missing
// readings. It contains no weather.
var sample = Source{
	Name:    "sample",
	About:   "8 buildings of cambridge, as in datasets/sample",
	Folder:  "sample",
	Steps:   []string{"loadstar data fetch cambridge"},
	From:    "the folder cambridge-estates that 'loadstar data fetch cambridge' writes",
	Licence: "load: MIT, Energy Efficient Cities Initiative, University of Cambridge; weather: Open Government Licence v3.0, Met Office",
	convert: convertSample,
	sums: map[string]string{
		"load.csv.gz":    "96433db373cd32086d76bfcfb643ca0419d8c64a08c84a6a97ef3251a8f5a08e",
		"weather.csv.gz": "63015d50a4feb73940fe935aae60be99425ed2cb5e4c67735d35322752bd1e0b",
		"meters.csv":     "45dc545b479b74982ebf4470ad87830ff63450519b9b9f23f98957e1db0f792e",
	},
}

// sampleFrom and sampleTo are the first hour and the hour after the last one, in UTC. Both
// are midnight in Cambridge.
const sampleFrom, sampleTo = "2015-04-30T23:00:00", "2016-06-30T23:00:00"

var sampleMeters = []string{"cam_b2", "cam_b3", "cam_b9", "cam_b34", "cam_b97", "cam_b101", "cam_b104", "cam_b111"}

func convertSample(from string, out *group) error {
	inSpan := func(stamp string) bool { return stamp >= sampleFrom && stamp < sampleTo }
	for _, file := range []struct {
		from, to string
		columns  []string
		keep     func(row []string) bool
	}{
		{
			"load_2013_2019.csv.gz", "load.csv.gz",
			[]string{"meter_id", "timestamp", "load_kw"},
			func(row []string) bool { return inSpan(row[1]) && slices.Contains(sampleMeters, row[0]) },
		},
		{
			"weather.csv.gz", "weather.csv.gz",
			[]string{"timestamp", "temp_c", "wind_ms", "rh_pct", "solar_wm2"},
			func(row []string) bool { return inSpan(row[0]) },
		},
		{
			"meters.csv", "meters.csv",
			[]string{"meter_id", "floor_area_m2", "floors", "roof_area_m2"},
			func(row []string) bool { return slices.Contains(sampleMeters, row[0]) },
		},
	} {
		if err := out.write(file.to, file.columns, func(write func([]byte)) error {
			return readCSV(filepath.Join(from, file.from), named(file.columns...), func(row []string) error {
				if file.keep(row) {
					write([]byte(strings.Join(row, ",")))
				}
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return nil
}
