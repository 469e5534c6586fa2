package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/synth"
	"loadstar/series/write"
)

// generateOptions are the flags of the command.
type generateOptions struct {
	out, start, like string
	cfg              synth.Config
	noFaults         bool
}

func newDataGenerate() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate synthetic load data",
		Long: `Generate synthetic load data for a fleet of buildings of the 14 ComStock types.
The data has load levels, daily and weekly profiles, holidays, a response to a
synthetic year of weather, noise, gaps, outages, stuck meters and spikes. The
same seed gives the same data on every machine.

With --like, the data is a fixed set of generated buildings that stands in for a
dataset of bose2023. A set has 42 buildings in California, Illinois or New York
or, if its name ends in -sample, the 20 other buildings of the paper's table I.
Its readings cover 2018 in steps of 15 minutes. The descriptions with these
names in datasets/ open the sets without generated files.

All output that is based on generated data is labelled as synthetic. Use the
data for trials and for speed measurements, but not as evidence of forecast
accuracy.`,
		Example: "  loadstar data generate --meters 100 -o demo\n  loadstar data generate --meters 10000 --seed 7 -o fleet\n  loadstar data generate --like bose2023-ca -o california",
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *generateOptions) add(f *pflag.FlagSet) {
	f.StringVarP(&o.out, "out", "o", "", "new folder for the dataset, or a .csv file in the format of an export")
	f.IntVar(&o.cfg.Meters, "meters", 42, "number of buildings")
	f.Uint64Var(&o.cfg.Seed, "seed", 1, "random seed")
	f.StringVar(&o.start, "start", "", "first day (default 2018-01-01)")
	f.IntVar(&o.cfg.Days, "days", 365, "number of days")
	f.DurationVar(&o.cfg.Interval, "interval", time.Hour, "interval: 15m or 1h")
	f.StringVar(&o.cfg.Zone, "zone", "America/Chicago", "time zone of the buildings (IANA name)")
	f.StringVar(&o.like, "like", "", "set of buildings: "+strings.Join(synth.Stocks(), ", "))
	f.BoolVar(&o.noFaults, "no-faults", false, "generate no gaps, outages, stuck meters or spikes")
}

// run generates data.
func (o *generateOptions) run(cmd *cobra.Command) error {
	if o.out == "" {
		return cli.Usagef("no output folder: use -o DIR")
	}
	if o.like != "" {
		for _, other := range []string{"meters", "seed", "start", "days", "interval", "zone", "no-faults"} {
			if cmd.Flags().Changed(other) {
				return cli.Usagef("--like determines all buildings: leave out --%s", other)
			}
		}
		return generateStock(cmd, o.like, o.out)
	}
	if !o.noFaults {
		o.cfg.Faults = synth.ModestFaults()
	}
	if o.start != "" {
		zone, err := time.LoadLocation(o.cfg.Zone)
		if err != nil {
			return cli.Usagef("--zone: %w", err)
		}
		if o.cfg.Start, err = time.ParseInLocation(time.DateOnly, o.start, zone); err != nil {
			return cli.Usagef("--start must be a day such as 2018-01-01, not %q", o.start)
		}
	}
	g, err := synth.New(o.cfg)
	if err != nil {
		return err
	}
	if err := generate(cmd, g, o.out); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s of %s each; %s\n", o.out, cli.Count(g.Config().Meters, "building"),
		cli.Count(g.Len(), "interval"), quality.DescribeInterval(g.Config().Interval), synth.Notice)
	return nil
}

// generate writes the fleet as a dataset into dir.
func generate(cmd *cobra.Command, g *synth.Generator, dir string) error {
	cfg, weather := g.Config(), g.Weather()
	bar := cli.NewProgress(cmd.ErrOrStderr(), cfg.Meters)
	defer bar.Stop()
	to := write.Dataset
	if filepath.Ext(dir) == ".csv" {
		to = write.Export
	}
	return to(dir, write.Source{
		Name:      filepath.Base(dir),
		About:     fmt.Sprintf("%s: %d buildings, seed %d, generator version %d", synth.Notice, cfg.Meters, cfg.Seed, synth.Version),
		Generated: true, Zone: cfg.Zone, Country: synth.Country, Interval: cfg.Interval,
		Weather: series.Weather{
			Start: g.Time(0).Unix(), Names: []string{"temperature", "wind", "humidity", "solar"},
			Columns: [][]float32{weather.Temperature, weather.Wind, weather.Humidity, weather.Solar},
		},
		LabelNames: []string{"type"}, StaticNames: []string{"floor_area_m2", "wall_area_m2", "window_area_m2"},
		Each: func(f func(series.Meter, []string) error) error {
			m := series.Meter{Start: g.Time(0).Unix(), Load: make([]float32, g.Len())}
			for i := range cfg.Meters {
				b := g.Building(i, m.Load)
				m.ID, m.Static = b.ID, []float32{float32(b.FloorArea), float32(b.WallArea), float32(b.WindowArea)}
				if err := f(m, []string{b.Type}); err != nil {
					return err
				}
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				if (i+1)%100 == 0 || i+1 == cfg.Meters {
					bar.Set(i+1, "")
				}
			}
			return nil
		},
	})
}

// generateStock writes a fixed set of generated buildings as a dataset into dir.
func generateStock(cmd *cobra.Command, name, dir string) error {
	s, err := synth.OpenStock(name)
	if err != nil {
		return cli.Usagef("--like: %w", err)
	}
	to := write.Dataset
	if filepath.Ext(dir) == ".csv" {
		to = write.Export
	}
	err = to(dir, write.Source{
		Name:      filepath.Base(dir),
		About:     fmt.Sprintf("%s: %s, version %d", synth.Notice, name, synth.StockVersion),
		Generated: true, Zone: s.Zone, Country: synth.Country, Interval: s.Interval,
		Weather:    series.Weather{Start: s.Start, Names: s.Weather, Columns: s.WeatherColumns()},
		LabelNames: []string{"type"}, StaticNames: s.Statics,
		Each: func(f func(series.Meter, []string) error) error {
			m := series.Meter{Start: s.Start, Load: make([]float32, s.Steps())}
			for i := range s.Len() {
				b := s.Building(i, m.Load)
				m.ID, m.Static = b.ID, b.Static
				if err := f(m, []string{b.Type}); err != nil {
					return err
				}
				if err := cmd.Context().Err(); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s of %s each; %s\n", dir, cli.Count(s.Len(), "building"),
		cli.Count(s.Steps(), "interval"), quality.DescribeInterval(s.Interval), synth.Notice)
	return nil
}
