package run

import (
	"fmt"
	"io"
	"math"

	"loadstar/metric"
)

// rise is the factor by which the validation loss must exceed its lowest value for a run to
// count as diverged.
const rise = 10

// late is the number of rounds at the end of a run over which losses are averaged, because
// the loss of a single round depends on which clients took part. Short runs use a tenth of
// their rounds.
const late = 100

// Course describes how the losses of a run changed during training. Numbers that the run
// does not have are NaN.
type Course struct {
	// TrainFirst is the mean training loss of the first round. TrainLast is the mean of the last
	// 100 rounds, or of the last tenth if the run has fewer than 1,000 rounds.
	TrainFirst metric.Number `json:"train_loss_first"`
	TrainLast  metric.Number `json:"train_loss_last"`
	// Lowest is the lowest validation loss of all evaluations. Last is the loss of the last
	// evaluation, and Late is the mean loss of the evaluations in the rounds that TrainLast
	// covers. A validation loss is a mean over clients.
	Lowest metric.Number `json:"validation_loss_lowest"`
	Last   metric.Number `json:"validation_loss_last"`
	Late   metric.Number `json:"validation_loss_late"`
	// Rose is the last validation loss divided by the lowest. It is NaN if the run was
	// never evaluated, or if a loss is not finite.
	Rose metric.Number `json:"rose"`
	// Diverged means that the last validation loss is at least ten times the lowest, or
	// that it is not finite. Training itself fails only if a weight or a loss on the
	// training split is not finite.
	Diverged bool `json:"diverged"`
}

// ReadCourse reads how the losses of a run changed. The run need not be finished.
func ReadCourse(dir string) (Course, error) {
	rounds, err := Read[Round](dir, "rounds")
	if err != nil {
		return Course{}, err
	}
	evaluations, err := Read[Evaluation](dir, "evaluations")
	if err != nil {
		return Course{}, err
	}
	return course(rounds, Losses(evaluations)), nil
}

// Loss is the validation loss of one evaluation.
type Loss struct {
	Round int
	Loss  float64 // mean over clients; not finite if the loss of any client is not
}

// Losses returns the validation loss of each evaluation.
func Losses(rows []Evaluation) (all []Loss) {
	for from := 0; from < len(rows); {
		sum, to := 0.0, from
		for to < len(rows) && rows[to].Round == rows[from].Round {
			sum += rows[to].Loss
			to++
		}
		all = append(all, Loss{rows[from].Round, sum / float64(to-from)})
		from = to
	}
	return all
}

// Lowest returns the index of the lowest loss, or of the first of several equal ones. It
// ignores NaNs. If all losses are NaN, it returns 0.
func Lowest(losses []Loss) int {
	at := 0
	for i, l := range losses {
		if l.Loss < losses[at].Loss || math.IsNaN(losses[at].Loss) && !math.IsNaN(l.Loss) {
			at = i
		}
	}
	return at
}

func course(rounds []Round, losses []Loss) Course {
	nan := metric.Number(math.NaN())
	c := Course{TrainFirst: nan, TrainLast: nan, Lowest: nan, Last: nan, Late: nan, Rose: nan}
	n := len(rounds)
	end := n - max(1, min(late, n/10)) // the first round of the averages
	sum, count := 0.0, 0
	for i, r := range rounds {
		if math.IsNaN(r.Loss) {
			continue // no client trained
		}
		if math.IsNaN(float64(c.TrainFirst)) {
			c.TrainFirst = metric.Number(r.Loss)
		}
		if i >= end {
			sum, count = sum+r.Loss, count+1
		}
	}
	c.TrainLast = metric.Number(sum / float64(count))
	if len(losses) == 0 {
		return c
	}
	last := losses[len(losses)-1]
	c.Last = metric.Number(last.Loss)
	sum, count = 0, 0
	for _, l := range losses {
		if !(float64(c.Lowest) <= l.Loss) && !math.IsNaN(l.Loss) {
			c.Lowest = metric.Number(l.Loss)
		}
		if l.Round > end || l == last {
			sum, count = sum+l.Loss, count+1
		}
	}
	c.Late = metric.Number(sum / float64(count))
	if math.IsNaN(last.Loss) || math.IsInf(last.Loss, 0) {
		c.Diverged = true
		return c
	}
	if c.Lowest > 0 {
		c.Rose = c.Last / c.Lowest
	}
	c.Diverged = c.Rose >= rise
	return c
}

// print reports that training diverged, if it did.
func (c *Course) print(w io.Writer) {
	switch {
	case c == nil || !c.Diverged:
	case math.IsNaN(float64(c.Rose)):
		fmt.Fprintln(w, "DIVERGED: the last validation loss is not finite; lower a learning rate, or set evaluate.keep to best")
	default:
		fmt.Fprintf(w, "DIVERGED: the validation loss ended at %.3g, %.0f times its lowest value; lower a learning rate, or set evaluate.keep to best\n", c.Last, c.Rose)
	}
}
