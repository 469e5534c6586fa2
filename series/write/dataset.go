package write

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"loadstar/series"
	"loadstar/series/read"
)

// Source is a dataset to be written.
type Source struct {
	Name, About string
	Generated   bool
	Zone        string // an IANA zone
	Country     string // whose public holidays apply; may be empty
	Interval    time.Duration
	Weather     series.Weather // may be empty
	// LabelNames and StaticNames name the properties of a meter: labels are strings, statics are
	// numbers.
	LabelNames, StaticNames []string
	// Each calls f for every meter, with its labels, and stops at the first error of f.
	Each func(f func(m series.Meter, labels []string) error) error
}

// CheckNew returns an error if a folder already contains a dataset.
func CheckNew(dir string) error {
	path := filepath.Join(dir, read.FileName)
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("%s already exists; choose another folder", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Dataset writes a folder with tables and their description, in the long format and with
// UTC times. It writes the description last, because a folder without one is not a dataset.
func Dataset(dir string, s Source) error {
	if err := CheckNew(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	load, err := CreateLoad(filepath.Join(dir, "load.parquet"))
	if err != nil {
		return err
	}
	defer load.Discard()
	meters, err := CreateMeters(filepath.Join(dir, "meters.csv"), s.LabelNames, s.StaticNames)
	if err != nil {
		return err
	}
	defer meters.Discard()
	err = s.Each(func(m series.Meter, labels []string) error {
		if err := load.Meter(m, s.Interval); err != nil {
			return err
		}
		return meters.Meter(m, labels)
	})
	if err != nil {
		return err
	}
	if err := load.Close(); err != nil {
		return err
	}
	if err := meters.Close(); err != nil {
		return err
	}
	d := &read.Description{
		Name: s.Name, About: s.About, Generated: s.Generated,
		Zone: s.Zone, Clock: read.ClockLegal, Country: s.Country, Interval: s.Interval.String(), Stamp: read.StampStart, Unit: "kW",
		Load:   read.Table{Files: []string{"load.parquet"}},
		Meters: &read.Table{Files: []string{"meters.csv"}},
	}
	if len(s.Weather.Names) > 0 {
		d.Weather = &read.Table{Files: []string{"weather.parquet"}}
		if err := Weather(filepath.Join(dir, "weather.parquet"), s.Weather, s.Interval); err != nil {
			return err
		}
	}
	return d.Write(filepath.Join(dir, read.FileName))
}
