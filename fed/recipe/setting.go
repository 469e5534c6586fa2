package recipe

import (
	"reflect"
	"slices"
	"strings"

	"loadstar/fed"
)

// setting is one key of a plan. Its name, type and place in the file are those of a
// field of [fed.Plan].
type setting struct {
	path  string // such as client.lr
	about string
	// initial is the default. Optimizer, schedule, algorithm and model may change it.
	// If it is nil, the default is zero.
	initial any
	// must bounds a number.
	must rule
	// choices are the permitted names, if there is a choice among names.
	choices []string
	// when says which plans have the setting, given their other settings; nil is all.
	when func(p *fed.Plan) bool
	// adjust changes the default if it depends on what the plan says. It is called if
	// the plan does not state the setting; given tells which others it states.
	adjust func(p *fed.Plan, given func(path string) bool)
}

// rule is a condition on a number, and the words for it.
type rule struct {
	say string
	ok  func(v float64) bool
}

var (
	positive      = rule{"above 0", func(v float64) bool { return v > 0 }}
	atLeastOne    = rule{"at least 1", func(v float64) bool { return v >= 1 }}
	nonNegative   = rule{"at least 0", func(v float64) bool { return v >= 0 }}
	belowOne      = rule{"at least 0 and below 1", func(v float64) bool { return v >= 0 && v < 1 }}
	positiveShare = rule{"above 0 and at most 1", func(v float64) bool { return v > 0 && v <= 1 }}
	unitInterval  = rule{"at least 0 and at most 1", func(v float64) bool { return v >= 0 && v <= 1 }}
)

// among returns the setting with other choices.
func (s setting) among(choices []string) setting {
	s.choices = choices
	return s
}

// only returns the setting restricted to some plans.
func (s setting) only(when func(p *fed.Plan) bool) setting {
	s.when = when
	return s
}

// possible returns all settings that some plan of the algorithm has, in the order of
// the plan's fields. Of settings with the same path, a plan has at most one, or all are
// the same. The caller must not change them.
func (a *algorithm) possible() []setting { return settingsByAlgorithm[a.name] }

var settingsByAlgorithm = func() map[string][]setting {
	all := map[string][]setting{}
	for _, a := range algorithms {
		all[a.name] = a.collectSettings()
	}
	return all
}()

func (a *algorithm) collectSettings() []setting {
	all := slices.Concat(planSettings, modelSettings(), evaluateSettings, a.settings)
	all = append(all, clientOptimizerSetting.among(a.optimizers), clientBatch)
	all = append(all, clientOptimizerSettings()...)
	if !a.fullPass {
		all = append(all, workSettings...)
	}
	all = append(all, a.serverOptimizerSettings()...)
	if !a.noServer {
		all = append(all, holdout, serverBound, maxExamples)
		if len(a.weightings) > 1 {
			all = append(all, serverWeighting.among(a.weightings))
		}
	}
	if a.schedules != nil {
		all = append(all, scheduleKind.among(a.schedules), cohort)
		all = append(all, a.scheduleSettings()...)
		all = append(all, simulateSettings...)
	}
	slices.SortStableFunc(all, func(x, y setting) int { return position(x.path) - position(y.path) })
	return all
}

// settingsOf returns the settings that a plan has, given its choices, in the order of
// its fields.
func (a *algorithm) settingsOf(p *fed.Plan) []setting {
	var has []setting
	for _, s := range a.possible() {
		if s.when == nil || s.when(p) {
			has = append(has, s)
		}
	}
	return slices.CompactFunc(has, func(x, y setting) bool { return x.path == y.path })
}

// pathsOf returns the paths of these settings.
func (a *algorithm) pathsOf(p *fed.Plan) []string {
	var has []string
	for _, s := range a.settingsOf(p) {
		has = append(has, s.path)
	}
	return has
}

// paths are the fields of a plan, in their order, and places where each one is.
var paths, places = fields(reflect.TypeFor[fed.Plan]())

// place is a field's position among all, and its index sequence in [fed.Plan].
type place struct {
	position int
	index    []int
}

func fields(plan reflect.Type) (paths []string, places map[string]place) {
	places = map[string]place{}
	var walk func(t reflect.Type, within string, index []int)
	walk = func(t reflect.Type, within string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			path, at := strings.TrimPrefix(within+"."+name, "."), append(slices.Clone(index), i)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, path, at)
				continue
			}
			places[path] = place{len(paths), at}
			paths = append(paths, path)
		}
	}
	walk(plan, "", nil)
	return paths, places
}

// position returns the place of a path in the plan, and -1 if there is no such field.
func position(path string) int {
	if at, ok := places[path]; ok {
		return at.position
	}
	return -1
}

// field returns the field of a plan that holds a setting.
func field(p *fed.Plan, path string) reflect.Value {
	return reflect.ValueOf(p).Elem().FieldByIndex(places[path].index)
}

// reset gives a setting its default.
func (s setting) reset(p *fed.Plan) {
	v := field(p, s.path)
	if s.initial == nil {
		v.SetZero()
		return
	}
	v.Set(reflect.ValueOf(s.initial).Convert(v.Type()))
}

// number returns the value of a numeric setting.
func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}
