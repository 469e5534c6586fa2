package explain

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"loadstar/fed/recipe"
)

// Print prints an explanation for a terminal.
func Print(w io.Writer, e *Explanation) error {
	fmt.Fprintf(w, "%s: %s, %s\n", e.File, e.Algorithm, textfmt.Count(e.Rounds, "round"))
	fmt.Fprintf(w, "%s\n\n", e.About)
	for _, section := range []func(io.Writer, *Explanation) error{printTraining, printLayers, printCommunication, printCost} {
		if err := section(w, e); err != nil {
			return err
		}
	}
	return nil
}

// row prints a row of a section.
func row(t io.Writer, name, format string, a ...any) {
	fmt.Fprintf(t, "  "+name+"\t"+format+"\n", a...)
}

func printTraining(w io.Writer, e *Explanation) error {
	fmt.Fprintln(w, "Training")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row(t, "model", "%s, %s parameters", e.Model, thousands(int64(e.Parameters)))
	from := fmt.Sprintf("%s of %s", textfmt.Count(e.Lookback, "step"), textfmt.Count(len(e.Inputs), "input"))
	if e.Features > 0 {
		from = fmt.Sprintf("%s in %s", textfmt.Count(e.Features, "feature"), textfmt.Count(len(e.Inputs), "group"))
	}
	row(t, "forecast", "%s, from %s", e.Ahead, from)
	row(t, "inputs", "%s", strings.Join(e.Inputs, ", "))
	if len(e.Missing) > 0 {
		row(t, "", "without %s, which the dataset does not have", strings.Join(e.Missing, ", "))
	}
	scale := map[string]string{"client": "each client's own range", "fleet": "the range over all clients"}[e.Scaling]
	if e.Features > 0 {
		scale = "each client's own standard deviation"
	}
	row(t, "loss", "%s, scaled by %s", e.Loss, scale)
	printData(t, e.Data)
	return t.Flush()
}

// printData prints the rows about the clients and their examples.
func printData(t io.Writer, x *Data) {
	switch {
	case x == nil:
		row(t, "clients", "unknown: no data given; use --data or --clients")
	case x.Examples == 0:
		row(t, "clients", "%s", thousands(int64(x.Clients)))
	default:
		row(t, "clients", "%s of %s%s", thousands(int64(x.Clients)), x.Name, textfmt.Synthetic(x.Generated))
		each := thousands(int64(x.Most))
		if x.Least < x.Most {
			each = thousands(int64(x.Least)) + " to " + each
		}
		row(t, "examples", "%s for training, %s per client", thousands(x.Examples), each)
		row(t, "gaps", "%s", x.Gaps)
	}
	if x == nil {
		return
	}
	var out []string
	for _, o := range []struct {
		n    int
		what string
	}{{x.Server, "%d on the server"}, {x.Holdout, "%d held out for scoring"}, {x.LeftOut, "%d skipped without a complete example"}} {
		if o.n > 0 {
			out = append(out, fmt.Sprintf(o.what, o.n))
		}
	}
	if len(out) > 0 {
		row(t, "", "%d train; %s", x.Training, strings.Join(out, "; "))
	}
}

func printLayers(w io.Writer, e *Explanation) error {
	fmt.Fprintf(w, "\nLayers (partition %s)\n", e.Partition)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	name := func(s string) string { return fmt.Sprintf("  %-8s", s) } // left-aligned, unlike the numbers
	fmt.Fprintf(t, "%s\tSHARED\tPERSONAL\t\n", name("LAYER"))
	for _, l := range e.Layers {
		shared, personal := "", thousands(int64(l.Parameters))
		if l.Shared {
			shared, personal = personal, shared
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t\n", name(l.Name), shared, personal)
	}
	fmt.Fprintf(t, "%s\t%s\t%s\t\n", name("total"), thousands(int64(e.Shared)), thousands(int64(e.Personal)))
	return t.Flush()
}

func printCommunication(w io.Writer, e *Explanation) error {
	fmt.Fprintln(w, "\nCommunication")
	if e.Alone {
		_, err := fmt.Fprintln(w, "  none")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	control := ""
	switch {
	case e.Control:
		control = "; half of this is control variates"
	case e.Averaged:
		control = "; two thirds of this are moments"
	}
	row(t, "per client and round", "%s down, %s up%s", byteSize(e.Down), byteSize(e.Up), control)
	if e.PerRound > 0 {
		row(t, "per round", "%s asked, %s", textfmt.Count(e.PerRound, "client"), byteSize(int64(e.PerRound)*(e.Down+e.Up)))
		if e.Chosen {
			row(t, "", "(the plan sets no schedule.cohort, and the fleet has more than %d clients)", recipe.LargeFleet)
		}
		row(t, "total", "%s", byteSize(e.Traffic))
	}
	row(t, "the server sees", "%s", strings.Join(e.Needs, ", "))
	if e.Trims {
		stored := byteSize(e.Up) + " of every client"
		if e.PerRound > 0 {
			stored = byteSize(int64(e.PerRound) * e.Up)
		}
		row(t, "trimmed mean", "the server stores every update of a round, %s; agents send no sums", stored)
	}
	if e.Coordinate > 0 {
		row(t, "largest change", "±%.3g of a weight by a client in the first round", e.Coordinate)
	}
	weight := "equal weights"
	if e.Weighting == "examples" {
		weight = "weighted by examples"
	}
	if e.FractionBits > 0 {
		row(t, "sums", "exact to 2^-%d, %s; updates beyond ±%g are rejected", e.FractionBits, weight, e.Bound)
	}
	return t.Flush()
}

func printCost(w io.Writer, e *Explanation) error {
	fmt.Fprintln(w, "\nCost")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if e.StepsATurn > 0 {
		row(t, "per client and round", "%s", textfmt.Count(e.StepsATurn, "gradient step"))
	}
	if e.Steps > 0 {
		row(t, "total", "%s gradient steps", thousands(e.Steps))
		row(t, "time", "about %s of training on this machine, with %s", roughly(e.Seconds), textfmt.Count(e.Workers, "worker"))
		row(t, "", "(measured now: %s steps per second and core, %s kernels)", thousands(int64(e.StepsPerS)), e.Kernel)
	} else {
		row(t, "speed", "%s gradient steps per second and core (measured now, %s kernels)", thousands(int64(e.StepsPerS)), e.Kernel)
	}
	kept := "nothing"
	if e.KeptBytes > 0 {
		kept = byteSize(e.KeptBytes)
	}
	row(t, "memory", "%s stored per client between rounds", kept)
	if e.ServerBytes > 0 {
		row(t, "", "%s for weights and updates on the server", byteSize(e.ServerBytes))
	}
	if e.SimulatorBytes > 0 {
		row(t, "", "%s in the simulator", byteSize(e.SimulatorBytes))
		row(t, "disk", "up to %s for a simulated run", byteSize(e.DiskBytes))
	}
	return t.Flush()
}

// thousands formats a number as 1,234,567.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// byteSize formats a number of bytes in units of kB, MB and so on, which are powers of
// 1000.
func byteSize(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		if v < 999.5 {
			break
		}
		v, unit = v/1000, u
	}
	if unit == "B" || v >= 99.95 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// roughly formats an estimated duration with few digits.
func roughly(seconds float64) string {
	switch {
	case seconds < 1:
		return "a second"
	case seconds < 90:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 90*60:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.0f h", seconds/3600)
	}
	return fmt.Sprintf("%.0f days", seconds/86400)
}
