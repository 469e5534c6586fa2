package paper

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"loadstar/lab/experiment"
)

// Print prints a table for each part of the experiment and each dataset. If two
// settings vary, it prints a grid of median relative MAE for each method instead.
func Print(w io.Writer, s *experiment.Spec, results []experiment.Result) error {
	var err error
	for _, p := range s.Parts {
		for _, dataset := range p.Datasets {
			rows := Of(results, p.Name, dataset)
			if len(rows) == 0 {
				continue
			}
			fmt.Fprintf(w, "\n%s: %s%s\n", p.Title, dataset, textfmt.Synthetic(rows[0].Generated))
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
			switch {
			case p.Data == experiment.Volume:
				printLong(t, rows)
			case p.Data == experiment.Loads:
				printLoads(t, rows)
			case p.Data != "":
				fmt.Fprintln(t, "COLUMN\tCORRELATION WITH LOAD\t")
				for _, r := range rows {
					fmt.Fprintf(t, "%s\t%v\t\n", r.Method, r.Figures["correlation"])
				}
			case len(p.Grid) == 2:
				printSquares(t, p, rows)
			default:
				printMethods(t, rows)
			}
			err = errors.Join(err, t.Flush())
			for _, note := range []string{divergence(rows), unfinished(rows)} {
				if note != "" {
					fmt.Fprintln(w, note)
				}
			}
		}
	}
	return err
}

func printMethods(t io.Writer, rows []experiment.Result) {
	fmt.Fprintln(t, "METHOD\tREL. MAE\tMEDIAN\tBELOW 1\tMAE kW\tRMSE kW\tMAPE\tBETTER\tWORSE\t")
	for _, r := range rows {
		f := r.Figures
		fmt.Fprintf(t, "%s\t%v\t%v\t%s\t%v\t%v\t%s\t", label(r),
			f["relative_mae_mean"], f["relative_mae_median"], Percent(f, "below_one"), f["mae"], f["rmse"], inPercent(f["mape"]))
		fmt.Fprintf(t, "%s\t%s\t\n", Percent(f, "dm_better"), Percent(f, "dm_worse"))
	}
}

func printSquares(t io.Writer, p experiment.Part, rows []experiment.Result) {
	for _, m := range p.Methods {
		fmt.Fprintf(t, "%s, median relative MAE: %s down, %s across\t\n\t", m.Name, p.Grid[0].Key, p.Grid[1].Key)
		for x := range p.Grid[1].Values {
			fmt.Fprintf(t, "%s\t", p.Grid[1].Name(x))
		}
		fmt.Fprintln(t)
		for y := range p.Grid[0].Values {
			fmt.Fprintf(t, "%s\t", p.Grid[0].Name(y))
			for x := range p.Grid[1].Values {
				at := []string{p.Grid[0].Name(y), p.Grid[1].Name(x)}
				i := slices.IndexFunc(rows, func(r experiment.Result) bool { return r.Method == m.Name && slices.Equal(r.At, at) })
				if i < 0 {
					fmt.Fprint(t, "-\t")
					continue
				}
				fmt.Fprintf(t, "%.3g%s\t", rows[i].Figures["relative_mae_median"].Mean(), mark(rows[i]))
			}
			fmt.Fprintln(t)
		}
	}
}
