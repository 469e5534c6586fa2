package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"loadstar/series"
	"loadstar/series/read"
	"loadstar/series/synth"
	"loadstar/series/write"
)

func newDataGenerate() *cobra.Command {
	var (
		out, start string
		cfg        synth.Config
		noFaults   bool
	)
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make up a fleet of buildings, for trials without data",
		Long: `Make up a fleet of buildings of the 14 types of the ComStock study: level, daily and
weekly shape, holidays, response to a made-up weather year, noise, gaps, outages, stuck
meters and spikes. The same seed gives the same fleet on every machine.

Nobody measured this: the dataset says so, and so does everything printed from it. Use it
to try things out and to measure speed, never to claim skill.`,
		Example: "  loadstar data generate --meters 100 -o demo\n  loadstar data generate --meters 10000 --seed 7 -o fleet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usageError{fmt.Errorf("where to? give -o DIR"), "data generate "}
			}
			if !noFaults {
				cfg.Faults = synth.ModestFaults()
			}
			if start != "" {
				zone, err := time.LoadLocation(cfg.Zone)
				if err != nil {
					return usageError{fmt.Errorf("--zone: %w", err), "data generate "}
				}
				if cfg.Start, err = time.ParseInLocation(time.DateOnly, start, zone); err != nil {
					return usageError{fmt.Errorf("--start is a day such as 2018-01-01, not %q", start), "data generate "}
				}
			}
			g, err := synth.New(cfg)
			if err != nil {
				return err
			}
			if err := generate(cmd, g, out); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s of %s each; %s\n", out, count(g.Config().Meters, "building"),
				count(g.Len(), "interval"), spellInterval(g.Config().Interval), synth.Notice)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&out, "out", "o", "", "folder to write the dataset into; it must not have one yet")
	f.IntVar(&cfg.Meters, "meters", 42, "number of buildings")
	f.Uint64Var(&cfg.Seed, "seed", 1, "what the fleet is drawn from")
	f.StringVar(&start, "start", "", "first day (default 2018-01-01)")
	f.IntVar(&cfg.Days, "days", 365, "number of days")
	f.DurationVar(&cfg.Interval, "interval", time.Hour, "15m or 1h")
	f.StringVar(&cfg.Zone, "zone", "America/Chicago", "IANA zone whose clock the buildings live by")
	f.BoolVar(&noFaults, "no-faults", false, "no gaps, outages, stuck meters and spikes")
	return cmd
}

// generate writes a fleet as a dataset in the long format.
func generate(cmd *cobra.Command, g *synth.Generator, dir string) (err error) {
	description := filepath.Join(dir, read.FileName)
	if _, err := os.Stat(description); err == nil {
		return fmt.Errorf("%s is there already; choose another folder", description)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cfg := g.Config()
	weather := g.Weather()
	if err := write.Weather(filepath.Join(dir, "weather.parquet"), series.Weather{
		Start: g.Time(0).Unix(), Names: []string{"temperature", "wind", "humidity", "solar"},
		Columns: [][]float32{weather.Temperature, weather.Wind, weather.Humidity, weather.Solar},
	}, cfg.Interval); err != nil {
		return err
	}
	meters, err := write.CreateMeters(filepath.Join(dir, "meters.csv"), []string{"type"}, []string{"floor_area_m2", "wall_area_m2", "window_area_m2"})
	if err != nil {
		return err
	}
	defer meters.Discard()
	load, err := write.CreateLoad(filepath.Join(dir, "load.parquet"))
	if err != nil {
		return err
	}
	defer load.Discard()
	m := series.Meter{Start: g.Time(0).Unix(), Load: make([]float32, g.Len())}
	bar := newProgress(cmd.ErrOrStderr(), cfg.Meters)
	defer bar.stop()
	for i := range cfg.Meters {
		b := g.Building(i, m.Load)
		m.ID, m.Static = b.ID, []float32{float32(b.FloorArea), float32(b.WallArea), float32(b.WindowArea)}
		if err := load.Meter(m, cfg.Interval); err != nil {
			return err
		}
		if err := meters.Meter(m, []string{b.Type}); err != nil {
			return err
		}
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		if (i+1)%100 == 0 || i+1 == cfg.Meters {
			bar.set(i+1, "")
		}
	}
	if err := load.Close(); err != nil {
		return err
	}
	if err := meters.Close(); err != nil {
		return err
	}
	return (&read.Description{
		Name:      filepath.Base(dir),
		About:     fmt.Sprintf("%s: %d buildings, seed %d, generator version %d", synth.Notice, cfg.Meters, cfg.Seed, synth.Version),
		Generated: true,
		Zone:      cfg.Zone,
		Clock:     read.ClockLegal,
		Interval:  cfg.Interval.String(),
		Stamp:     read.StampStart,
		Unit:      "kW",
		Load:      read.Table{Files: []string{"load.parquet"}},
		Weather:   &read.Table{Files: []string{"weather.parquet"}},
		Meters:    &read.Table{Files: []string{"meters.csv"}},
	}).Write(description)
}
