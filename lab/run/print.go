package run

import (
	"fmt"
	"io"
	"math"

	"loadstar/internal/textfmt"
)

// Print prints the summary of the run in the given folder for a terminal.
func (s *Summary) Print(w io.Writer, dir string) error {
	fmt.Fprintf(w, "%s: %s on %s, %s, %s, %s%s\n", s.Plan, s.Algorithm, s.Dataset,
		textfmt.Count(s.Clients, "client"), textfmt.Count(s.Rounds, "round"), textfmt.Count(int(s.Steps), "gradient step"), textfmt.Synthetic(s.Generated))
	if math.IsNaN(float64(s.MAE)) {
		fmt.Fprintln(w, "test split: no client has a complete window to score. Use more readings, or look for gaps with loadstar data check")
	} else {
		s.printScores(w)
	}
	fmt.Fprintf(w, "%.0f steps/s on %s, %.0f %% of the time in the engine; %d MB; prepared in %.1f s, trained in %.1f s, scored in %.1f s\n",
		s.StepsPerS, textfmt.Count(s.Workers, "worker"), 100*s.EngineShare, s.RSS>>20, s.Seconds.Prepare, s.Seconds.Train, s.Seconds.Score)
	if n := len(s.LeftOut); n > 0 {
		fmt.Fprintf(w, "skipped without a complete training example: %s, such as %s\n", textfmt.Count(n, "meter"), s.LeftOut[0])
	}
	_, err := fmt.Fprintf(w, "weights: SHA-256 %s\nrun folder: %s\n", s.Weights, dir)
	return err
}

func (s *Summary) printScores(w io.Writer) {
	fmt.Fprintf(w, "test split: MAE relative to %s: mean %.3f, median %.3f, below 1 for %.0f %% of clients; MAE %.3f kW\n",
		s.RelativeMAE.Reference, s.RelativeMAE.Mean, s.RelativeMAE.Median, 100*s.RelativeMAE.BelowOne, s.MAE)
	s.Course.print(w)
	if s.Corrected {
		fmt.Fprintf(w, "these forecasts are corrected by their latest errors; the model alone has a median of %.3f\n", s.Fleet["relative_mae_model"].Median)
	}
	if c := s.Coverage; c != nil {
		fmt.Fprintf(w, "loads inside the forecast interval: %.1f %%, before calibration %.1f %%\n", 100*c.Calibrated, 100*c.Model)
	}
}
