package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/read"
	"loadstar/series/write"
)

func newDataImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Import Green Button and NREL data",
		Long: `Import data in a published format into a folder with a dataset.yaml. Load and
weather become Parquet files in the long format with UTC times; the meters
become a CSV file. Nothing is downloaded.`,
	}
	cmd.AddCommand(newImportGreenButton(), newImportNREL())
	return cmd
}

func newImportGreenButton() *cobra.Command {
	var (
		from   read.GreenButton
		target importTarget
	)
	cmd := &cobra.Command{
		Use:   "green-button DIR",
		Short: "Import Green Button files (ESPI XML)",
		Long: `Import the Green Button files in a folder. Utilities in North America offer
these XML files to their customers as Download My Data or Green Button Connect
My Data (www.greenbuttondata.org). Unpack archives first. The command reads all
.xml and .xml.gz files in DIR and its subfolders.

For each usage point, the command imports the delivered electricity
(flowDirection 1, uom 72, Wh per interval). If there is none, it imports net
energy, or otherwise mean power (uom 38, W). It skips register readings,
exported energy, gas and water, and reports what it skipped. It applies
powerOfTenMultiplier and reads start times as Unix time.

The files contain the UTC offset but not the time zone. Set the zone with
--zone. The command checks the zone against the offset. The command imports
estimated readings and counts them. The titles of usage points, which are often
addresses, are written to meters.csv.`,
		Example: "  loadstar data import green-button downloads --zone America/Los_Angeles -o home",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return target.run(cmd, func() (*read.Import, error) { return from.Open(args[0]) })
		},
	}
	target.flags(cmd)
	cmd.Flags().StringVar(&from.Zone, "zone", "", "time zone of the meters, such as America/New_York")
	cmd.Flags().DurationVar(&from.Interval, "interval", 0, "import only meters with this interval, such as 15m (default the interval that all meters share)")
	return cmd
}

func newImportNREL() *cobra.Command {
	var (
		from   read.NREL
		labels string
		target importTarget
	)
	cmd := &cobra.Command{
		Use:   "nrel DIR",
		Short: "Import ComStock and ResStock buildings (NREL)",
		Long: `Import buildings from NREL's End-Use Load Profiles for the U.S. Building Stock.
The buildings are simulated, so the dataset is labelled as synthetic. Download
the files from the Open Energy Data Initiative (data.openei.org) into one
folder. They are at s3://oedi-data-lake/nrel-pds-building-stock/
end-use-load-profiles-for-us-building-stock. The folder and its subfolders may
contain these files:

  timeseries_individual_buildings/by_state/upgrade=0/state=CA/*-0.parquet
                                     buildings
  metadata_and_annual_results/...    floor, wall, window and roof area
                                     (.parquet or .csv)
  weather/.../G0600010_2018.csv      weather of one county

Files are recognized by their columns, not by their names. Time-series
timestamps mark the end of each interval. They are in Eastern Standard Time
regardless of the building's location (--labels est), or in local standard time
(--labels local). In est files, the publisher filled the first hours of the
local year with hours from the end of the year; the import skips them. Weather
timestamps mark the end of each hour, in local standard time. Areas are
converted to square metres.

All meters of a dataset have the same weather, so import each county separately,
or choose a weather file with --weather.`,
		Example: "  loadstar data import nrel oedi/alameda --zone America/Los_Angeles -o alameda",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch labels {
			case "est":
			case "local":
				from.LocalLabels = true
			default:
				return cli.Usagef("--labels must be est or local, not %q", labels)
			}
			return target.run(cmd, func() (*read.Import, error) { return from.Open(args[0]) })
		},
	}
	target.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&from.Zone, "zone", "", "time zone of the buildings, such as America/Los_Angeles")
	f.StringVar(&labels, "labels", "est", "time zone of the timestamps: est, or local for local standard time")
	f.StringVar(&from.Column, "column", read.NRELColumn, "column to import, in kWh per interval")
	f.StringVar(&from.Weather, "weather", "", "weather file to use if there are several; none imports no weather")
	return cmd
}

// importTarget contains the values of the flags for the dataset that an import writes.
type importTarget struct {
	out, name, country string
	asJSON             bool
}

func (t *importTarget) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&t.out, "out", "o", "", "folder for the dataset; it must not already contain a dataset")
	f.StringVar(&t.name, "name", "", "name of the dataset (default the name of the folder)")
	f.StringVar(&t.country, "country", "", "country or region of public holidays, such as US or CA, or none (default: that of the zone)")
	f.BoolVar(&t.asJSON, "json", false, "print JSON")
}

func (t *importTarget) run(cmd *cobra.Command, open func() (*read.Import, error)) error {
	if t.out == "" {
		return cli.Usage(errors.New("no output folder: use -o DIR"))
	}
	if err := write.CheckNew(t.out); err != nil {
		return err
	}
	in, err := open()
	if err != nil {
		return err
	}
	s, err := t.write(cmd, in)
	if err != nil {
		return err
	}
	if t.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), s)
	}
	w := cmd.OutOrStdout()
	s.print(w, t.out)
	for _, n := range s.Notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

// write writes an import as a dataset.
func (t *importTarget) write(cmd *cobra.Command, in *read.Import) (*dataSummary, error) {
	clock, err := time.LoadLocation(in.Zone)
	if err != nil {
		return nil, err
	}
	name := t.name
	if name == "" {
		abs, err := filepath.Abs(t.out)
		if err != nil {
			return nil, err
		}
		name = filepath.Base(abs)
	}
	country, note := read.HolidaysOf(t.country, in.Zone)
	s := &dataSummary{Overview: quality.Overview{Name: name, Generated: in.Generated}}
	bar := cli.NewProgress(cmd.ErrOrStderr(), in.Meters)
	defer bar.Stop()
	err = write.Dataset(t.out, write.Source{
		Name: name, About: in.About, Generated: in.Generated, Zone: in.Zone, Country: country, Interval: in.Interval,
		Weather: in.Weather, LabelNames: in.LabelNames, StaticNames: in.StaticNames,
		Each: func(f func(series.Meter, []string) error) error {
			return in.Each(func(m series.Meter, labels []string) error {
				s.Add(m, in.Interval, clock)
				bar.Set(s.Meters, "")
				return errors.Join(f(m, labels), cmd.Context().Err())
			})
		},
	})
	if s.Notes = in.Notes(); note != "" {
		s.Notes = append(s.Notes, note)
	}
	return s, err
}
