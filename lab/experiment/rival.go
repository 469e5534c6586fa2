package experiment

import (
	"math"
	"slices"

	"loadstar/lab/run"
)

// near is the maximum ratio of a method's error to the lowest error at which the method counts
// as near the best.
const near = 1.05

// contest adds to each result of a part, seed by seed, for how many clients the method is the
// best of the part's rivals, or near the best. A method that diverged is never the best.
// outcomes contains the runs of each row.
func (p *Part) contest(rows []row, outcomes [][]*outcome) {
	for i, r := range rows {
		if r.Part != p.Name || len(r.trials) == 0 || !p.rival(r.Method) {
			continue
		}
		var rivals [][]*outcome
		for k, other := range rows {
			if other.Part == r.Part && other.Dataset == r.Dataset && slices.Equal(other.At, r.At) && len(other.trials) == len(r.trials) && p.rival(other.Method) {
				rivals = append(rivals, outcomes[k])
			}
		}
		if len(rivals) < 2 {
			continue
		}
		for name, score := range map[string]func(run.Client) float64{
			"rmse": func(c run.Client) float64 { return c.RMSE },
			"mape": func(c run.Client) float64 { return c.MAPE },
			"mae":  func(c run.Client) float64 { return c.MAE },
		} {
			won, close := make(Figure, len(r.trials)), make(Figure, len(r.trials))
			for seed := range r.trials {
				lowest := map[string]float64{}
				for _, other := range rivals {
					for _, c := range other[seed].clients {
						if v, ok := lowest[c.Client]; !ok || score(c) < v {
							lowest[c.Client] = score(c)
						}
					}
				}
				for _, c := range outcomes[i][seed].clients {
					if v := score(c); v == lowest[c.Client] {
						won[seed]++
					}
					if v := score(c); v <= near*lowest[c.Client] {
						close[seed]++
					}
				}
			}
			r.Figures["won_"+name], r.Figures["near_"+name] = won, close
		}
	}
}

func (p *Part) rival(method string) bool {
	return len(p.Rivals) == 0 || slices.Contains(p.Rivals, method)
}

// versus compares each method of a part with the method Than, seed by seed: the number of
// clients for which the method's relative MAE is lower, and the round of the first evaluation
// at which its validation loss was no higher than the last one of Than, and vice versa. The
// round is NaN if there was no such evaluation.
func (p *Part) versus(rows []row, outcomes [][]*outcome) {
	if p.Than == "" {
		return
	}
	for i, r := range rows {
		if r.Part != p.Name || len(r.trials) == 0 || r.Method == p.Than {
			continue
		}
		for k, other := range rows {
			if other.Part != r.Part || other.Dataset != r.Dataset || other.Method != p.Than || !slices.Equal(other.At, r.At) {
				continue
			}
			gained, reached, back := make(Figure, len(r.trials)), make(Figure, len(r.trials)), make(Figure, len(r.trials))
			for seed := range r.trials {
				gained[seed], reached[seed] = compareOutcomes(outcomes[i][seed], outcomes[k][seed])
				_, back[seed] = compareOutcomes(outcomes[k][seed], outcomes[i][seed])
			}
			r.Figures["gained"], r.Figures["reached_round"], r.Figures["than_reached_round"] = gained, reached, back
		}
	}
}

func compareOutcomes(a, b *outcome) (gained, reached float64) {
	gained, reached = math.NaN(), math.NaN()
	if a.Summary == nil || b.Summary == nil {
		return gained, reached
	}
	theirs := map[string]float64{}
	for _, c := range b.clients {
		theirs[c.Client] = c.RelativeMAE
	}
	gained = 0
	for _, c := range a.clients {
		if v, ok := theirs[c.Client]; ok && c.RelativeMAE < v {
			gained++
		}
	}
	for _, l := range run.Losses(a.evaluations) {
		if l.Loss <= float64(b.course.Last) {
			return gained, float64(l.Round)
		}
	}
	return gained, reached
}
