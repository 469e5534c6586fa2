package recipe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/series"
	"loadstar/series/feature"
)

// Rows reports whether an example of the plan's model is a row of features.
func Rows(p *fed.Plan) bool {
	d, _ := forecast.DefaultsOf(p.Model.Name)
	return d.Rows
}

// rowSettings lists the settings of models that read rows of features.
var rowSettings = []setting{
	setting{path: "model.gaps", about: "share of the last 168 hours of readings that may be missing", must: belowOne}.only(Rows),
	setting{
		path: "evaluate.stride", about: "steps or duration between scored origins", must: atLeastOne,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			switch t := p.Model.Targets; {
			case t.Length() > time.Hour:
				p.Evaluate.Stride = fed.Lasting(6 * time.Hour)
			case t.Length() == 0 && t.Steps() > 1:
				p.Evaluate.Stride = fed.Steps(6)
			default:
				p.Evaluate.Stride = fed.Steps(1)
			}
		},
	}.only(Rows),
}

// denseDefaults sets the defaults for the model dense, which differ from those in the papers.
// Defaults of settings that the algorithm does not have are removed later.
func (a *algorithm) denseDefaults(p, chosen *fed.Plan) {
	if a.partition == "" {
		p.Partition = forecast.PartitionCorrection
	}
	p.Rounds = 320
	p.Model.Loss, p.Model.Gaps = "pinball", 0.1
	if slices.Contains(a.optimizers, "adam") && chosen.Client.Optimizer == "" {
		p.Client.Optimizer = "adam"
	}
	c := &p.Client
	if o := findClientOptimizer(c.Optimizer); o != nil {
		if c.Rate = o.rate; optimizerHas("beta1")(p) {
			c.Rate, c.WeightDecay.Correction = 0.005, 16
		}
	}
	c.RateEnd, c.Warmup, c.Batch, c.Moments = 2e-5, 50, 64, momentsKept
	if !a.fullPass {
		c.Steps, c.Epochs = 8, 0
	}
	if slices.Contains(a.weightings, "uniform") {
		p.Server.Weighting = "uniform"
	}
	p.Evaluate.Every = 40
}

// groups returns the names of the feature groups of a plan. If the plan lists none, names
// contains all groups for which given returns true, and missing contains the other groups.
func groups(p *fed.Plan, given func(name string) bool) (names, missing []string) {
	if len(p.Model.Inputs) > 0 {
		return p.Model.Inputs, nil
	}
	for _, g := range feature.Groups() {
		if given(g.Name) {
			names = append(names, g.Name)
		} else {
			missing = append(missing, g.Name)
		}
	}
	return names, missing
}

// MissingGroups returns the plan's feature groups for which data is missing. given lists the
// available data.
func MissingGroups(p *fed.Plan, given []string) (missing []string) {
	for _, name := range p.Model.Inputs {
		if !feature.Given(name, "", given) {
			missing = append(missing, name)
		}
	}
	return missing
}

// frameRows prepares the problem of a model that reads rows of features, and returns the
// model's shape. The plan must be resolved. The dataset may be nil. If the step is not known
// yet, openRows checks the reach later.
func (q *Problem) frameRows(p *fed.Plan, d *series.Dataset, known bool) (s forecast.Shape, err error) {
	interval, given := time.Duration(p.Model.Interval), func(string) bool { return true }
	if d != nil {
		given = func(name string) bool { return feature.Given(name, d.Country, d.Weather.Names) }
	}
	if err := checkInterval(interval); err != nil {
		return s, fmt.Errorf("model.interval is %s; %w", p.Model.Interval, err)
	}
	perDay := int(24 * time.Hour / interval)
	q.interval, q.gaps = interval, p.Model.Gaps
	q.layout = series.Layout{Lookback: p.Model.Lookback.Steps(), Horizon: p.Model.Horizon.Steps(), Targets: p.Model.Targets.Steps()}
	if q.layout.Lookback != 7*perDay {
		return s, fmt.Errorf("model.lookback is %d steps, %s of these readings; with model %s it must be 168h",
			q.layout.Lookback, Hours(time.Duration(q.layout.Lookback)*interval), p.Model.Name)
	}
	if path, err := checkReach(q.layout.Horizon, q.layout.Targets, 7*perDay); err != nil && known { // if the step is unknown, openRows checks the reach
		return s, fmt.Errorf("%s %w", path, err)
	}
	q.Groups, q.Missing = groups(p, given)
	s.Inputs, s.Naive, err = feature.Shape(feature.Task{StepsPerDay: perDay, Horizon: q.layout.Horizon, Targets: q.layout.Targets}, q.Groups)
	return s, err
}

// checkInterval returns an error if rows of features cannot be built from readings with the
// given interval. The width of a row depends on the number of readings in a day, so a plan from
// a stranger must not make it arbitrarily large.
func checkInterval(i time.Duration) error {
	switch {
	case i <= 0 || 24*time.Hour%i != 0:
		return fmt.Errorf("a day must be a multiple of it")
	case i < shortestInterval:
		return fmt.Errorf("it must be at least %s", shortestInterval)
	}
	return nil
}

// shortestInterval is the shortest time between readings in rows of features.
const shortestInterval = time.Minute

// checkReach returns an error, and the path of the setting to blame, if the last target is more
// than the given number of steps after the origin. The width of a row and the memory for lags
// depend on this distance.
func checkReach(horizon, targets, most int) (path string, err error) {
	switch {
	case horizon > most:
		return "model.horizon", fmt.Errorf("is %d; with rows of features it must be at most 168 hours, which is %d steps", horizon, most)
	case targets > most-horizon+1:
		return "model.targets", fmt.Errorf("is %d; with rows of features and model.horizon %d it must be at most %d, because the last target may be 168 hours after the last reading", targets, horizon, most-horizon+1)
	}
	return "", nil
}

// openRows sets the dataset of a problem whose examples are rows of features.
func (q *Problem) openRows(d *series.Dataset) (err error) {
	if d.Interval != q.interval {
		return fmt.Errorf("the readings are %s apart, but the plan is for readings %s apart; see model.interval", d.Interval, q.interval)
	}
	if path, err := checkReach(q.layout.Horizon, q.layout.Targets, 7*d.StepsPerDay()); err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	if q.rows, err = feature.NewFrame(d, q.layout, q.split, q.Groups, q.gaps); err != nil {
		return err
	}
	q.Framer = q.rows.Framer()
	return nil
}

// validateRows checks the settings of models that read rows of features.
func validateRows(p *fed.Plan, add report) {
	m, interval := &p.Model, time.Duration(p.Model.Interval)
	const week = 168
	if m.Lookback != fed.Lasting(week*time.Hour) && m.Lookback != fed.Steps(int(week*time.Hour/cmp.Or(interval, time.Hour))) {
		add("model.lookback", "model.lookback is %s; with model %s it must be %dh", m.Lookback, m.Name, week)
	}
	if m.Scaling != "client" {
		add("model.scaling", "model.scaling is %s; with model %s it must be client", m.Scaling, m.Name)
	}
	if interval == 0 {
		interval = shortestInterval // the dataset's interval is not known yet
	}
	if err := checkInterval(interval); err != nil {
		add("model.interval", "model.interval is %s; %s", fed.Duration(interval), err)
	} else if q, err := Resolve(p, interval); err == nil { // otherwise validate reports it
		if path, err := checkReach(q.Model.Horizon.Steps(), q.Model.Targets.Steps(), int(week*time.Hour/interval)); err != nil {
			add(path, "%s %s", path, err)
		}
	}
	if len(m.Inputs) > 0 {
		if _, _, err := feature.Shape(feature.Task{StepsPerDay: 24, Horizon: 1, Targets: 1}, m.Inputs); err != nil {
			add("model.inputs", "model.inputs: %s", err)
		}
	}
}
