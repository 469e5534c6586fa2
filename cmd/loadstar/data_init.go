package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/read"
	"loadstar/series/table"
)

// dataInitOptions are the flags of the command.
type dataInitOptions struct {
	setup  read.Setup
	asJSON bool
}

func newDataInit() *cobra.Command {
	var o dataInitOptions
	cmd := &cobra.Command{
		Use:   "init PATH",
		Short: "Recognise exported tables and describe them",
		Long: `Recognise the tables in a folder, or a single table, and write a ` + read.FileName + `
that describes them. The tables can be CSV files as meter systems export them,
Parquet files, or spreadsheets (.xlsx). docs/data.md lists the formats that the
command recognises, asks about and refuses.

The command asks at most two questions about facts that the files do not show.
In scripts, answer with flags. It opens the dataset to verify the description,
and writes nothing if that fails.`,
		Example: "  loadstar data init export.csv\n" +
			"  loadstar data init mydata --zone Europe/Berlin --stamp end\n" +
			"  loadstar data init mydata --zone UTC --yes --column load=Nutzung",
		Args: cobra.ExactArgs(1),
		RunE: o.run,
	}
	f, given, hints, format := cmd.Flags(), &o.setup.Given, &o.setup.Hints, &o.setup.Hints.Format
	f.StringVar(&given.Zone, "zone", "", "time zone of the meters, such as Europe/London, or UTC")
	f.StringVar(&given.Clock, "clock", "", "legal (timestamps follow daylight saving time), standard (they do not), or the zone in which customers live")
	f.StringVar(&given.Country, "country", "", "country or region of public holidays, such as GB or AU-NSW, or none (default that of the zone)")
	f.StringVar(&given.Stamp, "stamp", "", "whether a timestamp marks the start or the end of its interval")
	f.StringVar(&given.Unit, "unit", "", "unit of the load: "+strings.Join(read.Units(), ", "))
	f.StringVar(&given.Reading, "reading", "", "interval (a value is the load of its interval) or counter (a meter's count)")
	f.StringVar(&given.Name, "name", "", "name of the dataset (default the name of PATH)")
	f.DurationVar(&hints.Interval, "interval", 0, "time between readings (default the most frequent one in the data)")
	f.StringToStringVar(&hints.Columns, "column", nil, "column name for meter, time, date, load or quality, such as load=Usage")
	f.Lookup("column").DefValue = ""
	f.StringSliceVar(&format.Ignore, "ignore", nil, "columns that are not meters, in a table with a column per meter")
	f.StringVar(&format.Date, "date", "", "date format, such as dd.mm.yyyy")
	f.StringVar(&format.Sheet, "sheet", "", "sheet of a spreadsheet (default the first sheet with dates)")
	f.StringVar(&format.Decimal, "decimal", "", "decimal separator: . or ,")
	f.StringVar(&format.Delimiter, "delimiter", "", "separator of fields: , ; | or tab")
	f.StringVar(&format.Encoding, "encoding", "", "encoding: "+strings.Join(table.Encodings(), ", "))
	f.StringVar(&format.Header, "header", "", "name of a column, if the header is not found")
	f.StringSliceVar(&hints.Load, "load", nil, "load tables: files or patterns in PATH (default detected automatically)")
	f.StringSliceVar(&hints.Weather, "weather", nil, "weather tables (default detected automatically)")
	f.StringSliceVar(&hints.Meters, "meters", nil, "tables of meters (default detected automatically)")
	f.BoolVar(&o.setup.Ask.Defaults, "yes", false, "use the default answers; --zone has no default")
	f.BoolVar(&o.setup.Replace, "force", false, "replace an existing description")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *dataInitOptions) run(cmd *cobra.Command, args []string) error {
	o.setup.Ask.Out = cmd.ErrOrStderr()
	if in := cmd.InOrStdin(); isTerminal(in) {
		o.setup.Ask.In = in
	}
	got, err := o.setup.Run(args[0])
	if open := (*read.Unanswered)(nil); errors.As(err, &open) {
		return cli.Usage(err)
	}
	if err != nil {
		return err
	}
	s := summarize(got.Dataset)
	s.Left, s.Notes = got.Left, got.Lines
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), s)
	}
	for _, line := range s.Notes {
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
	if len(s.Left) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "not used: %s\n", strings.Join(s.Left, ", "))
	}
	s.print(cmd.OutOrStdout(), got.Path)
	if s.Faults.Nonexistent > 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "if timestamps do not follow daylight saving time, use --clock standard")
	}
	return nil
}

func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && nullErr == nil && info.Mode()&os.ModeCharDevice != 0 && !os.SameFile(info, null)
}

// dataSummary is the output of commands that create a dataset.
type dataSummary struct {
	quality.Overview
	Left  []string `json:"not_used,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

func summarize(d *series.Dataset) *dataSummary {
	s := &dataSummary{Overview: quality.Overview{Name: d.Name, Generated: d.Generated}}
	for i := range d.Len() {
		s.Add(d.Meter(i), d.Interval, d.Clock)
	}
	return s
}

// print prints the size and the time span of the dataset at path, and its faulty rows.
func (s *dataSummary) print(w io.Writer, path string) {
	fmt.Fprintf(w, "%s: %s%s, %s\n", path, cli.Count(s.Meters, "meter"), textfmt.Synthetic(s.Generated), quality.DescribeSpan(s.Overview))
	if f := quality.DescribeFaults(s.Faults); f != "" {
		fmt.Fprintf(w, "rows: %s\n", f)
	}
}
