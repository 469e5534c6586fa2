package track

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/stateformat/golden"
)

const day0 = 20000 // a day

func newRecord(t testing.TB) *Record {
	t.Helper()
	r, err := New([]float64{0.1, 0.5, 0.9}, 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// outcomes returns made-up outcomes of a number of days: an issue every six hours with 48
// rows.
func outcomes(days int) (all []Outcome) {
	rng := rand.New(rand.NewPCG(1, 2))
	for cutoff := int64(day0) * secondsPerDay; cutoff < int64(day0+days)*secondsPerDay; cutoff += 6 * 3600 {
		for lead := range int64(48) {
			o := Outcome{
				Time: cutoff + lead*3600, Cutoff: cutoff, Load: 5 + rng.NormFloat64(), Source: issue.Model,
				Served: []float64{4, 5, 6}, Model: 5.5, Week: 5 + rng.NormFloat64(),
			}
			switch rng.IntN(12) {
			case 0:
				o.Load = math.NaN()
			case 1:
				o.Week = math.NaN()
			case 2:
				o.Model, o.Source = math.NaN(), issue.Week
			case 3:
				o.Served, o.Source = nil, issue.None
			}
			all = append(all, o)
		}
	}
	return all
}

// TestScores compares scores with a computation from all outcomes.
func TestScores(t *testing.T) {
	r := newRecord(t)
	all := outcomes(60)
	for _, o := range all {
		r.Add(o)
	}
	newest, ok := r.Newest()
	if want := day0 + 61; !ok || newest != want {
		t.Fatalf("newest day %d, want %d", newest, want)
	}
	for _, days := range []int{1, 7, 28, 40} {
		for block := All; block < Blocks; block++ {
			day := newest - 2
			var n, served, with, week, model, weekModel, pinball, inside, rows, fallback float64
			for _, o := range all {
				d, lead := DayOf(o.Time), (o.Time-o.Cutoff)/3600+1
				in := [Blocks]bool{lead <= 1, lead > 1 && lead <= 6, lead > 6 && lead <= 24, lead > 24}
				if d > day || d <= day-days || d <= newest-Days || block != All && !in[block] {
					continue
				}
				rows++
				if o.Source != issue.Model {
					fallback++
				}
				if o.Served == nil || math.IsNaN(o.Load) {
					continue
				}
				n++
				served += math.Abs(o.Load - 5)
				if o.Load >= 4 && o.Load <= 6 {
					inside++
				}
				for i, a := range []float64{0.1, 0.5, 0.9} {
					pinball += max(a*(o.Load-o.Served[i]), (a-1)*(o.Load-o.Served[i])) / 3
				}
				if math.IsNaN(o.Week) {
					continue
				}
				with += math.Abs(o.Load - 5)
				week += math.Abs(o.Load - o.Week)
				if !math.IsNaN(o.Model) {
					model += math.Abs(o.Load - o.Model)
					weekModel += math.Abs(o.Load - o.Week)
				}
			}
			s := r.Scores(day, days, block)
			got := []float64{float64(s.MAE), float64(s.RelativeMAE), float64(s.Skill), float64(s.ModelRelativeMAE), float64(s.Pinball), float64(s.Coverage), float64(s.Fallback), float64(s.Nominal)}
			want := []float64{served / n, with / week, 1 - with/week, model / weekModel, pinball / n, inside / n, fallback / rows, 0.8}
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-9 {
					t.Fatalf("%d days, block %d: %v, want %v", days, block, got, want)
				}
			}
			if s.Targets != int(n) || s.Rows[issue.Model]+int(fallback) != int(rows) {
				t.Fatalf("%d days, block %d: %+v", days, block, s)
			}
		}
	}
}

// TestReset checks that a day can be counted again, in another order of days.
func TestReset(t *testing.T) {
	r, all := newRecord(t), outcomes(30)
	for _, o := range all {
		r.Add(o)
	}
	want, _ := r.AppendBinary(nil)
	for _, day := range []int{day0 + 29, day0 + 3, day0 + 15} {
		r.Reset(day)
		if s := r.Scores(day, 1, All); s.Targets != 0 || !math.IsNaN(float64(s.MAE)) {
			t.Fatalf("%+v after a reset", s)
		}
		for _, o := range all {
			if DayOf(o.Time) == day {
				r.Add(o)
			}
		}
	}
	if got, _ := r.AppendBinary(nil); !bytes.Equal(got, want) {
		t.Error("a day that was counted again has other sums")
	}
	r.Reset(day0 + 1000) // unknown days are ignored
	r.Reset(-1)
	if got, _ := r.AppendBinary(nil); !bytes.Equal(got, want) {
		t.Error("resetting an unknown day changed the record")
	}
}

// TestSilence checks that old days are forgotten after weeks without outcomes, and that an
// outcome of a forgotten day is ignored.
func TestSilence(t *testing.T) {
	r, all := newRecord(t), outcomes(30)
	for _, o := range all {
		r.Add(o)
	}
	late := all[0]
	late.Time += 100 * secondsPerDay
	late.Cutoff = late.Time
	r.Add(late)
	r.Add(all[5])
	newest, _ := r.Newest()
	if s := r.Scores(newest, Days, All); s.Targets != 1 || s.Rows[issue.Model] != 1 {
		t.Errorf("%+v", s)
	}
	if _, _, rows := r.Errors(newest); rows != 1 {
		t.Errorf("%d rows", rows)
	}
	if _, _, rows := r.Errors(newest - 50); rows != 0 {
		t.Errorf("%d rows of a forgotten day", rows)
	}
}

// TestErrors checks the errors that drift detection uses.
func TestErrors(t *testing.T) {
	r := newRecord(t)
	at := int64(day0) * secondsPerDay
	for i, o := range []Outcome{{Load: 5, Model: 6, Week: 2}, {Load: 5, Model: 3, Week: 5}, {Load: 5, Model: math.NaN(), Week: 90}, {Load: 5, Model: 90, Week: math.NaN()}} {
		o.Time, o.Cutoff, o.Source, o.Served = at+int64(i)*3600, at, issue.Model, []float64{1, 2, 3}
		r.Add(o)
	}
	if model, week, rows := r.Errors(day0); model != 1.5 || week != 1.5 || rows != 2 {
		t.Errorf("model %v, week %v, %d rows", model, week, rows)
	}
}

// TestScoresJSON checks that scores without outcomes can be encoded.
func TestScoresJSON(t *testing.T) {
	b, err := json.Marshal(newRecord(t).Scores(day0, 7, All))
	if err != nil || !strings.Contains(string(b), `"mae":null`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		levels []float64
		point  int
		step   time.Duration
	}{{nil, 0, time.Hour}, {[]float64{0.9, 0.1}, 0, time.Hour}, {[]float64{0.5}, 1, time.Hour}, {[]float64{0.5}, 0, 0}} {
		if _, err := New(c.levels, c.point, c.step); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func TestStateFormat(t *testing.T) {
	r := newRecord(t)
	all := outcomes(2)
	for _, o := range append(slices.Clone(all[:3]), all[60:64]...) {
		r.Add(o)
	}
	want, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "record", recordFormat, want, func(b []byte) error {
		got := newRecord(t)
		if err := got.UnmarshalBinary(b); err != nil {
			if !reflect.DeepEqual(got, newRecord(t)) {
				t.Fatal("a refused record changed the record")
			}
			return err
		}
		if !reflect.DeepEqual(got, r) {
			return fmt.Errorf("the record differs after reading it")
		}
		return nil
	})
	other, err := New([]float64{0.1, 0.5, 0.9}, 1, 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if other.UnmarshalBinary(want) == nil {
		t.Error("a record of another step was accepted")
	}
	for _, o := range outcomes(60) {
		r.Add(o)
	}
	if b, err := r.AppendBinary(nil); err != nil || len(b) > 40_000 {
		t.Errorf("a full record has %d bytes, %v", len(b), err)
	}
}

// FuzzState checks that any accepted record can go on and be scored.
func FuzzState(f *testing.F) {
	for _, days := range []int{0, 1, 45} {
		r := newRecord(f)
		for _, o := range outcomes(days) {
			r.Add(o)
		}
		b, _ := r.AppendBinary(nil)
		_, state, err := recordFormat.Unwrap(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(state)
	}
	f.Fuzz(func(t *testing.T, state []byte) {
		r := newRecord(t)
		if r.UnmarshalBinary(recordFormat.Wrap(state)) != nil {
			return
		}
		for _, o := range outcomes(1) {
			r.Add(o)
		}
		newest, _ := r.Newest()
		if s := r.Scores(newest, Days, All); s.Coverage < 0 || s.Coverage > 1 || s.Fallback > 1 {
			t.Fatalf("%+v", s)
		}
	})
}
