package recipe

import (
	"reflect"
	"slices"
	"strings"

	"loadstar/fed"
)

// setting is one key of a plan. Its name, type and position in the file are those of a
// field of [fed.Plan].
type setting struct {
	path  string // such as client.lr
	about string
	// initial is the default, or nil for zero. A plan's optimizer, schedule, algorithm or model
	// may replace it with another default.
	initial any
	// must is the condition that a number must meet.
	must rule
	// choices lists the permitted names, if the setting is a choice between names.
	choices []string
	// when reports whether a plan has the setting, given its other settings; nil means
	// always.
	when func(p *fed.Plan) bool
	// adjust replaces the default with one that depends on other settings. It is called only
	// if the plan file does not set this setting. given reports whether the plan file sets
	// the setting at path.
	adjust func(p *fed.Plan, given func(path string) bool)
	// quiet means that Write leaves the setting out if it has its default value and no model
	// changes this default. Older agents can then read the text of a plan that does not use a
	// new setting.
	quiet bool
}

// rule is a condition for a number, with a description for error messages.
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

// among returns a copy of the setting with the given choices.
func (s setting) among(choices []string) setting {
	s.choices = choices
	return s
}

// only returns a copy of the setting for plans that meet the given condition.
func (s setting) only(when func(p *fed.Plan) bool) setting {
	s.when = when
	return s
}

// allSettings returns the settings of all plans of the algorithm, in the order of the plan's
// fields. Several settings in the result can have the same path if they are equal or if no plan
// has more than one of them. The caller must not change the result.
func (a *algorithm) allSettings() []setting { return settingsByAlgorithm[a.name] }

var settingsByAlgorithm = func() map[string][]setting {
	all := map[string][]setting{}
	for _, a := range algorithms {
		all[a.name] = a.collectSettings()
	}
	return all
}()

func (a *algorithm) collectSettings() []setting {
	all := slices.Concat(planSettings, modelSettings(), rowSettings, evaluateSettings, a.settings)
	all = append(all, clientOptimizerSetting.among(a.optimizers), clientBatch)
	all = append(all, clientOptimizerSettings()...)
	if !a.fullPass {
		all = append(all, workSettings...)
		all = append(all, momentsSetting.among(a.moments()))
		if a.begins {
			all = append(all, beginSettings...)
		}
		if !a.noDecay {
			all = append(all, weightDecaySettings...)
		}
	}
	all = append(all, a.serverOptimizerSettings()...)
	if !a.noServer {
		all = append(all, holdout, sample, serverClip, serverCoordinate, serverBound, maxExamples)
		all = append(all, a.privacyMode())
		if a.plain == "" {
			all = append(all, privacySettings...)
		}
		if a.aggregator == nil { // trimming replaces the mean of updates, which is always synchronous
			all = append(all, serverRobust)
		}
		if len(a.weightings) > 1 {
			all = append(all, serverWeighting.among(a.weightings))
		}
	}
	all = append(all, a.startSettings()...)
	if a.schedules != nil {
		all = append(all, scheduleKind.among(a.schedules), cohort)
		all = append(all, a.scheduleSettings()...)
		all = append(all, simulateSettings...)
	}
	slices.SortStableFunc(all, func(x, y setting) int { return position(x.path) - position(y.path) })
	return all
}

// settingsOf returns the settings that a plan with p's choices has, in the order of the
// plan's fields.
func (a *algorithm) settingsOf(p *fed.Plan) []setting {
	var has []setting
	for _, s := range a.allSettings() {
		if s.when == nil || s.when(p) {
			has = append(has, s)
		}
	}
	return slices.CompactFunc(has, func(x, y setting) bool { return x.path == y.path })
}

// pathsOf returns the paths of the settings that settingsOf returns.
func (a *algorithm) pathsOf(p *fed.Plan) []string {
	var has []string
	for _, s := range a.settingsOf(p) {
		has = append(has, s.path)
	}
	return has
}

// paths lists the fields of a plan in order. places maps each path to its field.
var paths, places = fields(reflect.TypeFor[fed.Plan]())

// place is a field's position in paths and its index sequence in [fed.Plan].
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
			if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[fed.Timespan]() {
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

// position returns the index of a path in paths, or -1 if there is no such field.
func position(path string) int {
	if at, ok := places[path]; ok {
		return at.position
	}
	return -1
}

// field returns the field of p that contains the value of the setting at path.
func field(p *fed.Plan, path string) reflect.Value {
	return reflect.ValueOf(p).Elem().FieldByIndex(places[path].index)
}

// reset sets the setting in p to its default.
func (s setting) reset(p *fed.Plan) {
	v := field(p, s.path)
	if s.initial == nil {
		v.SetZero()
		return
	}
	v.Set(reflect.ValueOf(s.initial).Convert(v.Type()))
}

// number returns the value of a numeric field as a float64.
func number(v reflect.Value) float64 {
	if s, ok := v.Interface().(fed.Timespan); ok {
		if s.Length() > 0 { // rules only compare the number with 0 and 1
			return s.Length().Minutes()
		}
		return float64(s.Steps())
	}
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}
