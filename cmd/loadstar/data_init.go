package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/read"
)

func newDataInit() *cobra.Command {
	var (
		hints              read.Hints
		given              read.Description
		force, yes, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write a description of your tables",
		Long: `Inspect the tables in a folder and write a ` + read.FileName + ` that describes them:
the files with load, weather and meters, their columns, the interval, and the
unit if a column's name ends in it.

Tables must be in the long format, with one row per meter and time, as CSV
(optionally gzipped) or Parquet. A folder with one file per meter works too. The
command asks for what it cannot find out: the time zone of the meters, whether
timestamps follow daylight saving time, and whether a timestamp is the start or
the end of its interval. In scripts, answer with flags.

Finally the command opens the dataset to verify the description.`,
		Example: "  loadstar data init mydata\n" +
			"  loadstar data init mydata --zone Europe/Berlin --clock legal --stamp end\n" +
			"  loadstar data init mydata --zone UTC --yes --column load=Verbrauch",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := filepath.Join(args[0], read.FileName)
			if _, err := os.Stat(path); err == nil && !force {
				return fmt.Errorf("%s already exists; use --force to replace it", path)
			}
			survey, err := read.Look(args[0], hints)
			if err != nil {
				return err
			}
			d := survey.Description
			if d.Name = given.Name; d.Name == "" {
				dir, err := filepath.Abs(args[0])
				if err != nil {
					return err
				}
				d.Name = filepath.Base(dir)
			}
			d.Zone, d.Clock, d.Stamp, d.Country = given.Zone, given.Clock, given.Stamp, given.Country
			if given.Unit != "" {
				d.Unit = given.Unit
			}
			if err := answer(d, survey.Zoned, yes, cmd.InOrStdin(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			if err := d.Write(path); err != nil {
				return err
			}
			s, err := summarize(args[0])
			if err != nil {
				return fmt.Errorf("%s was written, but the dataset cannot be opened: %w", path, err)
			}
			s.Left = survey.Left
			if asJSON {
				return printJSON(cmd.OutOrStdout(), s)
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s: %s\n", path, s)
			if f := faultList(s.Faults); f != "" {
				fmt.Fprintf(w, "rows: %s\n", f)
			}
			if s.Faults.Nonexistent > 0 {
				fmt.Fprintln(w, "if timestamps do not follow daylight saving time, use --clock standard")
			}
			if len(s.Left) > 0 {
				fmt.Fprintf(w, "not used: %s\n", strings.Join(s.Left, ", "))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.Zone, "zone", "", "time zone of the meters, such as Europe/London, or UTC")
	f.StringVar(&given.Clock, "clock", "", "legal (timestamps follow daylight saving time) or standard (they do not)")
	f.StringVar(&given.Country, "country", "", "country or region whose public holidays apply, such as GB or AU-NSW")
	f.StringVar(&given.Stamp, "stamp", "", "whether a timestamp marks the start or the end of its interval")
	f.StringVar(&given.Unit, "unit", "", "unit of the load: "+strings.Join(read.Units(), ", "))
	f.StringVar(&given.Name, "name", "", "name of the dataset (default the name of DIR)")
	f.DurationVar(&hints.Interval, "interval", 0, "time between readings (default the most frequent one in the data)")
	f.StringToStringVar(&hints.Columns, "column", nil, "column name for meter, time or load, such as load=Usage")
	f.Lookup("column").DefValue = ""
	f.StringSliceVar(&hints.Load, "load", nil, "load tables: files or patterns in DIR (default detected)")
	f.StringSliceVar(&hints.Weather, "weather", nil, "weather tables (default detected)")
	f.StringSliceVar(&hints.Meters, "meters", nil, "tables of meters (default detected)")
	f.BoolVar(&yes, "yes", false, "use the defaults legal, start and kW; --zone has no default")
	f.BoolVar(&force, "force", false, "replace an existing description")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// question asks for a setting that the files do not show.
type question struct {
	flag, text, fallback string
	value                *string
	check                func(string) error
}

// answer fills in the missing settings of a description, with defaults or by asking.
func answer(d *read.Description, zoned, yes bool, in io.Reader, out io.Writer) error {
	oneOf := func(values ...string) func(string) error {
		return func(s string) error {
			for _, v := range values {
				if s == v {
					return nil
				}
			}
			return fmt.Errorf("choose one of %s", strings.Join(values, ", "))
		}
	}
	questions := []question{
		{"zone", "Time zone of the meters, such as Europe/London, or UTC", "", &d.Zone, read.CheckZone},
		{"clock", "Do timestamps follow daylight saving time (legal) or not (standard)?", read.ClockLegal, &d.Clock, oneOf(read.ClockLegal, read.ClockStandard)},
		{"stamp", "Is a timestamp the start or the end of its interval?", read.StampStart, &d.Stamp, oneOf(read.StampStart, read.StampEnd)},
		{"unit", "Unit of the load: power in kW, W or MW, or energy per interval in kWh, Wh or MWh", "kW", &d.Unit, oneOf(read.Units()...)},
	}
	if zoned && d.Clock == "" {
		d.Clock = read.ClockLegal // need not ask, because the timestamps have a UTC offset
	}
	var open []question
	for _, q := range questions {
		if *q.value == "" && yes {
			*q.value = q.fallback
		}
		if *q.value == "" {
			open = append(open, q)
		}
	}
	if len(open) == 0 {
		return nil
	}
	if isTerminal(in) {
		lines := bufio.NewScanner(in)
		for len(open) > 0 {
			if err := open[0].ask(lines, out); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			open = open[1:]
		}
	}
	if len(open) == 0 {
		return nil
	}
	var flags, fallbacks []string
	for _, q := range open {
		flags = append(flags, "--"+q.flag)
		if q.fallback != "" {
			fallbacks = append(fallbacks, q.fallback)
		}
	}
	err := fmt.Errorf("some settings cannot be read from the files, and there is no terminal to ask on: use %s", strings.Join(flags, ", "))
	if len(fallbacks) > 0 && !yes {
		err = fmt.Errorf("%w (or --yes for %s)", err, strings.Join(fallbacks, ", "))
	}
	return usageError{err, "data init "}
}

// ask repeats the question until the answer is valid. It returns io.EOF at the end of the
// input.
func (q question) ask(lines *bufio.Scanner, out io.Writer) error {
	for {
		fmt.Fprint(out, q.text)
		if q.fallback != "" {
			fmt.Fprintf(out, " [%s]", q.fallback)
		}
		fmt.Fprint(out, ": ")
		if !lines.Scan() {
			fmt.Fprintln(out)
			return errors.Join(io.EOF, lines.Err())
		}
		s := strings.TrimSpace(lines.Text())
		if s == "" {
			s = q.fallback
		}
		err := q.check(s)
		if err == nil {
			*q.value = s
			return nil
		}
		fmt.Fprintln(out, err)
	}
}

func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// dataSummary is the output of commands that create a dataset.
type dataSummary struct {
	quality.Overview
	Left  []string `json:"not_used,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// summarize opens the dataset at path and returns a summary of it.
func summarize(path string) (*dataSummary, error) {
	d, closer, err := openDataset(path, "")
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	s := &dataSummary{Overview: quality.Overview{Name: d.Name, Generated: d.Generated}}
	for i := range d.Len() {
		s.Add(d.Meter(i), d.Interval, d.Clock)
	}
	return s, nil
}

func (s *dataSummary) String() string {
	const minute = "2006-01-02 15:04"
	return fmt.Sprintf("%s%s, %s to %s, every %s, coverage %.1f %%",
		count(s.Meters, "meter"), generatedMark(s.Generated), s.From.Format(minute), s.To.Format(minute), s.Interval, 100*s.Coverage)
}

// faultList formats the counts of faulty rows, or returns "" if there are none.
func faultList(f series.Faults) string {
	var out []string
	for _, c := range []struct {
		n    int
		what string
	}{
		{f.Duplicates, "repeated"},
		{f.Conflicts, "in conflict with an earlier row, dropped"},
		{f.OutOfOrder, "out of order"},
		{f.OffGrid, "off the interval grid, dropped"},
		{f.Nonexistent, "in the hour that daylight saving time skips, dropped"},
	} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("%d in total: %s", f.Rows, strings.Join(out, "; "))
}
