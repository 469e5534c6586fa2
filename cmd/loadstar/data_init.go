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
		Short: "Write the description of a folder of tables",
		Long: `Look at the tables in a folder and write a ` + read.FileName + ` for them: which files hold load,
weather and meters, which columns, the interval, the unit if a column's name ends in it.

Tables are in the long format, CSV (gzipped or not) or Parquet, with a row for a meter and
a time; a folder of files with one meter each will do too. What files cannot show is asked
for: where the meters are, whether labels follow daylight saving, whether a time is the
start or the end of its interval. Flags answer for scripts.

Then the dataset is opened, as every other command would.`,
		Example: "  loadstar data init mydata\n" +
			"  loadstar data init mydata --zone Europe/Berlin --clock legal --stamp end --unit kWh\n" +
			"  loadstar data init mydata --zone UTC --yes --column load=Verbrauch",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := filepath.Join(args[0], read.FileName)
			if _, err := os.Stat(path); err == nil && !force {
				return fmt.Errorf("%s is there already; --force writes it anew", path)
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
			d.Zone, d.Clock, d.Stamp = given.Zone, given.Clock, given.Stamp
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
				return fmt.Errorf("%s is written, but cannot be opened so: %w", path, err)
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
				fmt.Fprintln(w, "labels may run on without daylight saving: if they do, --clock standard")
			}
			if len(s.Left) > 0 {
				fmt.Fprintf(w, "not used: %s\n", strings.Join(s.Left, ", "))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.Zone, "zone", "", "where the meters are: an IANA zone such as Europe/London, or UTC")
	f.StringVar(&given.Clock, "clock", "", "legal: labels follow daylight saving; standard: they run on without it")
	f.StringVar(&given.Stamp, "stamp", "", "start or end: what of its interval a time is")
	f.StringVar(&given.Unit, "unit", "", "unit of the load: "+strings.Join(read.Units(), ", "))
	f.StringVar(&given.Name, "name", "", "name of the dataset (default the folder's)")
	f.DurationVar(&hints.Interval, "interval", 0, "interval (default what is mostly between two rows)")
	f.StringToStringVar(&hints.Columns, "column", nil, "a column of the load table, such as load=Usage, for meter, time or load")
	f.Lookup("column").DefValue = ""
	f.StringSliceVar(&hints.Load, "load", nil, "load tables: files or patterns below DIR (default all that look like it)")
	f.StringSliceVar(&hints.Weather, "weather", nil, "weather tables")
	f.StringSliceVar(&hints.Meters, "meters", nil, "tables of meters")
	f.BoolVar(&yes, "yes", false, "take the defaults for what is not given: legal, start, kW; the zone has none")
	f.BoolVar(&force, "force", false, "replace a description that is there")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// question is something that files do not show.
type question struct {
	flag, text, fallback string
	value                *string
	check                func(string) error
}

// answer fills in what is missing of a description: with defaults, or by asking.
func answer(d *read.Description, zoned, yes bool, in io.Reader, out io.Writer) error {
	oneOf := func(values ...string) func(string) error {
		return func(s string) error {
			for _, v := range values {
				if s == v {
					return nil
				}
			}
			return fmt.Errorf("it is one of %s", strings.Join(values, ", "))
		}
	}
	questions := []question{
		{"zone", "Where are the meters? A zone such as Europe/London, or UTC", "", &d.Zone, read.CheckZone},
		{"clock", "Do labels follow daylight saving (legal), or run on without it (standard)?", read.ClockLegal, &d.Clock, oneOf(read.ClockLegal, read.ClockStandard)},
		{"stamp", "Is a time the start or the end of its interval?", read.StampStart, &d.Stamp, oneOf(read.StampStart, read.StampEnd)},
		{"unit", "In which unit is the load? Power in kW, W or MW, or energy of each interval in kWh, Wh or MWh", "kW", &d.Unit, oneOf(read.Units()...)},
	}
	if zoned && d.Clock == "" {
		d.Clock = read.ClockLegal // labels say themselves what they are
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
	err := fmt.Errorf("the files do not show it, and there is no terminal to ask on: give %s", strings.Join(flags, ", "))
	if len(fallbacks) > 0 && !yes {
		err = fmt.Errorf("%w (or --yes for %s)", err, strings.Join(fallbacks, ", "))
	}
	return usageError{err, "data init "}
}

// ask asks until there is an answer; io.EOF if there is nobody to answer.
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

// dataSummary describes a dataset that was written.
type dataSummary struct {
	quality.Overview
	Left  []string `json:"not_used,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// summarize opens a dataset as other commands do.
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

// faultList names what was wrong with rows, or nothing.
func faultList(f series.Faults) string {
	var out []string
	for _, c := range []struct {
		n    int
		what string
	}{
		{f.Duplicates, "repeated"},
		{f.Conflicts, "with another value for the same time, dropped"},
		{f.OutOfOrder, "out of order"},
		{f.OffGrid, "between two steps, dropped"},
		{f.Nonexistent, "in an hour that clocks skip, dropped"},
	} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("of %d: %s", f.Rows, strings.Join(out, "; "))
}
