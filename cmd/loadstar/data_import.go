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
		Short: "Import Green Button data",
		Long: `Import data in a published format into a folder with a dataset.yaml. Load becomes
a Parquet file in the long format with UTC times; the meters become a CSV file.
Nothing is downloaded.`,
	}
	cmd.AddCommand(newImportGreenButton())
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
	s := &dataSummary{Overview: quality.Overview{Name: name}}
	bar := cli.NewProgress(cmd.ErrOrStderr(), in.Meters)
	defer bar.Stop()
	err = write.Dataset(t.out, write.Source{
		Name: name, About: in.About, Zone: in.Zone, Country: country, Interval: in.Interval,
		LabelNames: in.LabelNames,
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
