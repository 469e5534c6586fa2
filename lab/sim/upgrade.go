package sim

import (
	"bytes"

	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/series"
)

// upgradePlan returns the plan in a run's folder as this version of the program writes it, so
// that a run of an older version can be resumed. Settings that the older version did not have
// get their defaults, which preserve its behaviour.
func (c *Config) upgradePlan(text []byte) ([]byte, error) {
	p, err := recipe.Read(text)
	if err != nil {
		return nil, err
	}
	if p, err = recipe.Resolve(p, c.Dataset.Interval); err != nil {
		return nil, err
	}
	// The effective plan in a folder has every setting on a separate line.
	given := bytes.Contains(text, []byte("\n  reference: "))
	layout := series.Layout{Horizon: p.Model.Horizon.Steps(), Targets: p.Model.Targets.Steps()}
	if !given && forecast.Auto.For(layout) != forecast.LastValue {
		// In plans without a reference, all errors were relative to the last value.
		p.Evaluate.Reference = string(forecast.LastValue)
	}
	return recipe.Write(p)
}
