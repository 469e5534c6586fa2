package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newRunWatch() *cobra.Command {
	var (
		o      operatorFlags
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run until it ends",
		Long: `Follow a run until it ends. The command shows a progress bar on a terminal, and
otherwise prints a line for each round. The exit code is 1 if the run failed. A
stopped run is not an error. The command reconnects if the connection breaks.
The name of the run is its id, the beginning of its id, the name of its plan, or
@last.

The relative MAE is the validation error of the weights before the round,
divided by the error of a simple forecast (evaluate.reference in the plan). The
command shows its mean over the clients that trained, and the change since the
last measurement.`,
		Example: "  loadstar run watch @last",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, run, err := o.dialRun(ctx, args[0])
			if err != nil {
				return err
			}
			var v view = &lineView{w: cmd.OutOrStdout()}
			switch {
			case asJSON:
				v = jsonView{cmd.OutOrStdout()}
			case cli.Terminal(cmd.OutOrStdout()):
				v = &barView{lineView: lineView{w: cmd.OutOrStdout()}}
			}
			last, err := follow(ctx, c, run, v)
			if err != nil {
				return plain(err)
			}
			if last.State == "failed" {
				return errors.New(run + " " + stateOf(last))
			}
			if !asJSON && last.Version > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "next: loadstar release create %s\n", run)
			}
			return nil
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each round as a line of JSON; rounds are numbered from 0")
	return cmd
}

func ended(r *v1.Run) bool { return r.State != "waiting" && r.State != "running" }

// view displays a run that is followed.
type view interface {
	begin(run *v1.Run)
	round(run *v1.Run, r *v1.Round) error
	// waiting is called if the open round waits for silent agents.
	waiting(run *v1.Run, w *v1.Waiting)
	end(run *v1.Run)
}

// follow shows a run until it ends. It reconnects if the connection breaks.
func follow(ctx context.Context, c *operator, run string, v view) (last *v1.Run, err error) {
	for {
		last, err = stream(ctx, c, run, last, v)
		switch {
		case last != nil && ended(last):
			v.end(last)
			return last, nil
		case ctx.Err() != nil:
			return last, ctx.Err()
		case last == nil:
			return nil, err
		}
		time.Sleep(time.Second)
	}
}

// stream shows the rounds of a run until the event stream ends, and returns the last known
// state of the run.
func stream(ctx context.Context, c *operator, run string, last *v1.Run, v view) (*v1.Run, error) {
	s, err := c.WatchRun(ctx, &v1.WatchRunRequest{Run: run})
	if err != nil {
		return last, err
	}
	defer func() { _ = s.Close() }() // Err returns the reason why the stream ended
	for s.Receive() {
		m := s.Msg()
		switch {
		case m.Waiting != nil:
			v.waiting(m.Run, m.Waiting)
		case m.Round != nil:
			if err := v.round(m.Run, m.Round); err != nil {
				return last, err
			}
		case last == nil:
			v.begin(m.Run)
		}
		last = m.Run
	}
	return last, s.Err()
}

// jsonView prints each round as a line of JSON.
type jsonView struct{ w io.Writer }

func (jsonView) begin(*v1.Run)                        {}
func (jsonView) end(*v1.Run)                          {}
func (v jsonView) waiting(_ *v1.Run, w *v1.Waiting)   { _ = cli.PrintLine(v.w, w) } // the next round reports a closed pipe
func (v jsonView) round(_ *v1.Run, r *v1.Round) error { return cli.PrintLine(v.w, r) }

// lineView prints a line for each round.
type lineView struct {
	w      io.Writer
	before float64 // the latest measured relative MAE, or 0
}

func (v *lineView) begin(run *v1.Run) {
	fmt.Fprintf(v.w, "%s: %s, %s, round %d of %d\n", run.Id, run.Name, stateOf(run), roundNumber(run), run.Rounds)
}

func (v *lineView) waiting(_ *v1.Run, w *v1.Waiting) {
	fmt.Fprintf(v.w, "%s; time left unknown while the run waits\n", w.Text)
}

func (v *lineView) end(run *v1.Run) {
	fmt.Fprintf(v.w, "%s after %s, version %d\n", stateOf(run), (time.Duration(run.Finished-run.Created) * time.Millisecond).Round(100*time.Millisecond), run.Version)
}

func (v *lineView) round(run *v1.Run, r *v1.Round) error {
	_, err := fmt.Fprintf(v.w, "round %d of %d %s: asked %d, counted %d, late %d, lost %d, loss %s%s, %.1f s%s\n",
		r.Round+1, run.Rounds, r.State, r.Asked, r.Counted, r.Late, r.Lost, lossOf(r), v.accuracy(r), float64(r.Closed-r.Opened)/1000, timeLeft(run, r))
	return err
}

// accuracy returns the relative MAE of a round and its change, if the error was measured.
func (v *lineView) accuracy(r *v1.Round) string {
	if r.Evaluated == 0 {
		return ""
	}
	text := fmt.Sprintf(", relative MAE %.3f", r.RelativeMae)
	if v.before > 0 {
		text += fmt.Sprintf(" (%+.3f)", r.RelativeMae-v.before)
	}
	v.before = r.RelativeMae
	return text
}

// barView shows a progress bar, for terminals.
type barView struct {
	lineView
	bar   *cli.Progress
	score string // the latest measured accuracy
}

func (v *barView) round(run *v1.Run, r *v1.Round) error {
	if v.bar == nil {
		v.bar = cli.NewProgress(v.w, int(run.Rounds))
	}
	if text := v.accuracy(r); text != "" {
		v.score = text
	}
	v.bar.Show(int(r.Round)+1, fmt.Sprintf("%s, %d of %d counted, loss %s%s", timeLeft(run, r), r.Counted, r.Asked, lossOf(r), v.score))
	return nil
}

func (v *barView) waiting(run *v1.Run, w *v1.Waiting) {
	if v.bar == nil {
		v.bar = cli.NewProgress(v.w, int(run.Rounds))
	}
	v.bar.Show(int(w.Round), ", "+w.Text)
}

func (v *barView) end(run *v1.Run) {
	if v.bar != nil {
		v.bar.Stop()
	}
	v.lineView.end(run)
}

// timeLeft estimates the remaining time of a run from the mean time per round so far.
func timeLeft(run *v1.Run, r *v1.Round) string {
	left := run.Rounds - r.Round - 1
	if left <= 0 || run.Started == 0 || ended(run) {
		return ""
	}
	span := time.Duration(r.Closed-run.Started) * time.Millisecond / time.Duration(r.Round+1) * time.Duration(left)
	return fmt.Sprintf(", about %s left", span.Round(max(time.Second, span.Truncate(time.Minute)/60)))
}
