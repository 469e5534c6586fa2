package experiment

import (
	"fmt"
	"io"
	"text/tabwriter"

	"loadstar/internal/textfmt"
)

// medianOf formats the median of the scores, followed by their range if there are several
// seeds.
func medianOf(c Compared) string {
	if c.Low == c.High {
		return fmt.Sprintf("%.3f", c.Median)
	}
	return fmt.Sprintf("%.3f (%.3f-%.3f)", c.Median, c.Low, c.High)
}

// Print prints a table for each comparison. If subject is not empty, other methods are
// compared with it.
func Print(w io.Writer, table []Comparison, subject string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range table {
		fmt.Fprintf(t, "%s: %s, errors relative to %s%s\n", c.Dataset, textfmt.Count(c.Clients, "client"), c.Reference, textfmt.Synthetic(c.Generated))
		fmt.Fprint(t, "METHOD\tREL. MAE\tMEDIAN\tBELOW 1\tMAE kW\t")
		if subject != "" {
			fmt.Fprint(t, "RATIO\tWON\tBETTER\tWORSE\t")
		}
		fmt.Fprintln(t)
		for _, m := range c.Methods {
			fmt.Fprintf(t, "%s%s\t%.3f\t%s\t%.0f %%\t%.3f\t", m.Method, m.mark(), m.Mean, medianOf(m), 100*m.BelowOne, m.MAE)
			if p := m.Paired; p != nil {
				fmt.Fprintf(t, "%.3f\t%.0f %%\t%.0f %%\t%.0f %%\t", p.Ratio, 100*p.Won, 100*p.Better, 100*p.Worse)
			}
			fmt.Fprintln(t)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if note := divergedNote(table); note != "" {
		_, err := fmt.Fprintln(w, note)
		return err
	}
	return nil
}
