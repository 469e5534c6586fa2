package recipe

import (
	"fmt"
	"time"

	"loadstar/fed"
)

// spanPaths lists the settings that are counted in steps of the data.
var spanPaths = []string{"model.lookback", "model.horizon", "model.targets", "evaluate.stride"}

// spanOf returns the span at path.
func spanOf(p *fed.Plan, path string) *fed.Timespan {
	return field(p, path).Addr().Interface().(*fed.Timespan)
}

// Resolve returns the plan for readings with the given time between them. In the result, spans
// count steps and model.interval is step. The simulator, the server and agents all resolve a
// plan before they use it. Resolve returns an error if the plan is for another step, or if a
// duration is not a multiple of step.
func Resolve(p *fed.Plan, step time.Duration) (*fed.Plan, error) {
	if i := time.Duration(p.Model.Interval); i != 0 && i != step {
		return nil, fmt.Errorf("model.interval is %s, but the readings are %s apart", p.Model.Interval, fed.Duration(step))
	}
	q := *p
	q.Model.Interval = fed.Duration(step)
	for _, path := range spanPaths {
		s := spanOf(&q, path)
		n, err := s.In(step)
		if err != nil {
			return nil, fmt.Errorf("%s %w", path, err)
		}
		*s = fed.Steps(n)
	}
	return &q, nil
}

// Stated resolves a plan with its own step. A plan without a step must not contain durations.
func Stated(p *fed.Plan) (*fed.Plan, error) {
	if p.Model.Interval != 0 {
		return Resolve(p, time.Duration(p.Model.Interval))
	}
	for _, path := range spanPaths {
		if s := spanOf(p, path); s.Length() > 0 {
			return nil, fmt.Errorf("%s is %s, but the plan does not state the interval of the readings; set model.interval", path, s)
		}
	}
	return p, nil
}

// Assume resolves a plan without data. If the plan does not state the step, Assume uses an hour
// or, if some duration is not a multiple of an hour, the longest shorter step that divides all
// durations.
func Assume(p *fed.Plan) (*fed.Plan, error) {
	step := time.Duration(p.Model.Interval)
	if step == 0 {
		step = time.Hour
		for _, path := range spanPaths {
			for rest := spanOf(p, path).Length(); rest > 0; { // computes the greatest common divisor
				step, rest = rest, step%rest
			}
		}
	}
	return Resolve(p, step)
}

// CountsSteps returns a warning if the plan states the length of its forecasts in steps and the
// readings are not an hour apart, because 24 steps are a day only with hourly readings. The
// plan must not be resolved.
func CountsSteps(p *fed.Plan, step time.Duration) string {
	t := p.Model.Targets
	if t.Length() > 0 || t.Steps() == 1 || step == time.Hour || p.Model.Interval != 0 {
		return ""
	}
	meant := time.Duration(t.Steps()) * time.Hour
	name := Hours(meant)
	if meant == 24*time.Hour {
		name = "a day"
	}
	return fmt.Sprintf("%s counts %d steps, which are %s of this data; write targets: %s for %s",
		p.Name, t.Steps(), Hours(time.Duration(t.Steps())*step), fed.Duration(meant), name)
}

// Hours formats a duration, such as 24 hours, 6.5 hours or 45 minutes.
func Hours(d time.Duration) string {
	n, unit := d.Minutes(), "minute"
	if d >= time.Hour {
		n, unit = d.Hours(), "hour"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%.4g %s", n, unit)
}
