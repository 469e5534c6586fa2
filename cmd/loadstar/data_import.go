package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/read"
	"loadstar/series/write"
)

func newDataImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Convert what utilities and laboratories publish",
		Long: `Convert files in somebody else's form into a folder with a dataset.yaml: load and weather
as Parquet in the long format with UTC times, meters as CSV. Nothing is downloaded.`,
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
		Short: "Convert Green Button files (ESPI XML)",
		Long: `Convert the Green Button files in a folder: XML as utilities in North America give it to
their customers, under names such as Download My Data or Green Button Connect My Data
(www.greenbuttondata.org). Unpack archives first; .xml and .xml.gz below DIR are read.

Of each usage point the electricity that was delivered is taken (flowDirection 1, uom 72,
Wh in each interval), or else net energy, or else mean power (uom 38, W). Registers, power
that was fed in, gas and water are left out, and that is said. Multipliers and times are as
the files have them: powerOfTenMultiplier, and starts in Unix time.

Files know the offset of local time but not the zone, which --zone gives; the two are
compared. Readings that are marked as estimated are kept and counted. The titles of usage
points, often addresses, go into meters.csv.`,
		Example: "  loadstar data import green-button downloads --zone America/Los_Angeles -o home",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return target.run(cmd, "data import green-button ", func() (*read.Import, error) { return from.Open(args[0]) })
		},
	}
	target.flags(cmd)
	cmd.Flags().StringVar(&from.Zone, "zone", "", "where the meters are: an IANA zone such as America/New_York")
	cmd.Flags().DurationVar(&from.Interval, "interval", 0, "take the meters with this interval, such as 15m (default the one that all have)")
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
		Short: "Convert ComStock and ResStock buildings (NREL)",
		Long: `Convert buildings of NREL's End-Use Load Profiles for the U.S. Building Stock. They are
simulated: the dataset is marked as generated. Download what you want from the Open Energy
Data Initiative, s3://oedi-data-lake/nrel-pds-building-stock/end-use-load-profiles-for-us-building-stock
(data.openei.org), into one folder; it is read with all folders below it:

  timeseries_individual_buildings/by_state/upgrade=0/state=CA/*-0.parquet   buildings
  metadata_and_annual_results/... .parquet or .csv      floor, wall, window and roof area
  weather/.../G0600010_2018.csv                         one county's weather

Files are told apart by their columns. Labels of the time series are the end of an interval
in Eastern Standard Time wherever the building stands (--labels est). Hours that the
publishers moved from the end of the year to its start for that are left out. Labels in
local standard time are --labels local. Weather is in local standard time, and its labels
are the end of an hour. Areas become square metres.

A dataset has one weather for all its meters: import county by county, or choose one.`,
		Example: "  loadstar data import nrel oedi/alameda --zone America/Los_Angeles -o alameda",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch labels {
			case "est":
			case "local":
				from.LocalLabels = true
			default:
				return usageError{fmt.Errorf("--labels is est or local, not %q", labels), "data import nrel "}
			}
			return target.run(cmd, "data import nrel ", func() (*read.Import, error) { return from.Open(args[0]) })
		},
	}
	target.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&from.Zone, "zone", "", "where the buildings stand: an IANA zone such as America/Los_Angeles")
	f.StringVar(&labels, "labels", "est", "clock of the time series: est as published, or local for local standard time")
	f.StringVar(&from.Column, "column", read.NRELColumn, "energy to take, in kWh for each interval")
	f.StringVar(&from.Weather, "weather", "", "weather file to take where there are several, or none")
	return cmd
}

// importTarget is where an import goes.
type importTarget struct {
	out, name string
	asJSON    bool
}

func (t *importTarget) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&t.out, "out", "o", "", "folder to write the dataset into; it must not have one yet")
	f.StringVar(&t.name, "name", "", "name of the dataset (default the folder's)")
	f.BoolVar(&t.asJSON, "json", false, "print JSON")
}

func (t *importTarget) run(cmd *cobra.Command, path string, open func() (*read.Import, error)) error {
	if t.out == "" {
		return usageError{errors.New("where to? give -o DIR"), path}
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
		return printJSON(cmd.OutOrStdout(), s)
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s: %s\n", t.out, s)
	if f := faultList(s.Faults); f != "" {
		fmt.Fprintf(w, "rows: %s\n", f)
	}
	for _, n := range s.Notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

// write converts an import.
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
	s := &dataSummary{Overview: quality.Overview{Name: name, Generated: in.Generated}}
	bar := newProgress(cmd.ErrOrStderr(), in.Meters)
	defer bar.stop()
	err = write.Dataset(t.out, write.Source{
		Name: name, About: in.About, Generated: in.Generated, Zone: in.Zone, Interval: in.Interval,
		Weather: in.Weather, LabelNames: in.LabelNames, StaticNames: in.StaticNames,
		Each: func(f func(series.Meter, []string) error) error {
			return in.Each(func(m series.Meter, labels []string) error {
				s.Add(m, in.Interval, clock)
				bar.set(s.Meters, "")
				return errors.Join(f(m, labels), cmd.Context().Err())
			})
		},
	})
	s.Notes = in.Notes()
	return s, err
}
