package report

import "loadstar/lab/run"

// Others contains forecasts of other programs for comparison with a run.
type Others struct {
	// Table compares them with the run on the targets for which all of them have a forecast.
	Table Table
	// Name is the name of the forecasts whose curves are drawn instead of a baseline's.
	Name   string
	Curves []run.BaselineCurve
}

// Leads describes which forecasts the curves of the run show.
func (r *Run) Leads() run.Leads {
	return run.Leads{Targets: r.setting("model.targets"), Stride: r.setting("evaluate.stride")}
}

// Drawn returns the clients whose curves the report shows.
func (r *Run) Drawn() map[string]bool {
	drawn := map[string]bool{}
	for _, x := range r.excerpts {
		drawn[x.client] = true
	}
	return drawn
}

// Compare adds the forecasts of other programs to the part of the report about the run.
func (r *Run) Compare(o Others) {
	o.Table.Generated = r.Generated
	r.others = &o
}

// others returns the other programs' forecasts of the first run that has any, or nil.
func (s *dataset) others() *Others {
	for _, m := range s.trained() {
		for _, r := range m.runs {
			if r.others != nil {
				return r.others
			}
		}
	}
	return nil
}

// otherTables returns the table of the forecasts of other programs.
func (s *dataset) otherTables() []Table {
	if o := s.others(); o != nil {
		return []Table{o.Table}
	}
	return nil
}
