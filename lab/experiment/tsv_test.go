package experiment

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

var saved = []Result{
	{Part: "table", Dataset: "houses", Generated: true, Method: "FedAvg", At: []string{"0.1", "P 1"}, Figures: map[string]Figure{
		"steps": {12000000, 12000000}, "dm_better": {0.5, 0.25}, "mae": {1, 2}, "relative_mae_mean": {0.25, 1.0 / 3},
	}},
	{Part: "table", Dataset: "houses", Generated: true, Method: "Lost", Figures: map[string]Figure{"mae": {3, math.NaN()}}},
	{Part: "meta", Figures: map[string]Figure{"runs": {4}}},
}

const savedText = `part	dataset	method	at	metric	values
meta	houses			generated	1
table	houses	FedAvg	0.1; P 1	relative_mae_mean	0.25 0.333333
table	houses	FedAvg	0.1; P 1	mae	1 2
table	houses	FedAvg	0.1; P 1	dm_better	0.5 0.25
table	houses	FedAvg	0.1; P 1	steps	12000000 12000000
table	houses	Lost		mae	3 NaN
meta				runs	4
`

func TestTSV(t *testing.T) {
	if got := table(t, saved); got != savedText {
		t.Errorf("got\n%s\nwant\n%s", got, savedText)
	}
	read, err := ReadTSV(strings.NewReader(savedText))
	if err != nil {
		t.Fatal(err)
	}
	if got := table(t, read); got != savedText {
		t.Errorf("read and written again:\n%s", got)
	}
	if !reflect.DeepEqual(read[0].At, saved[0].At) || !read[1].Generated || read[2].Generated {
		t.Errorf("read %+v", read)
	}
}

func TestReadTSVRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"the first line is not":       "part\tdataset\tmethod\tat\tseeds\tmetric\tmean\tlow\thigh\n",
		"line 2 has 5 fields":         header + "\na\tb\tc\td\te\n",
		`line 2: "x" is not a number`: header + "\na\tb\tc\td\te\t1 x\n",
		"no values":                   header + "\na\tb\tc\td\te\t\n",
		"e appears twice":             header + "\na\tb\tc\td\te\t1\na\tb\tc\td\te\t2\n",
		"are not together":            header + "\na\tb\tc\td\te\t1\na\tb\tz\td\te\t2\na\tb\tc\td\tf\t2\n",
	} {
		if _, err := ReadTSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestFigure(t *testing.T) {
	f := Figure{1, 2, 6}
	if f.Mean() != 3 || f.Low() != 1 || f.High() != 6 || math.Abs(f.Spread()-math.Sqrt(7)) > 1e-12 || f.String() != "3 (1-6)" {
		t.Errorf("%v %v %v %v %v", f.Mean(), f.Low(), f.High(), f.Spread(), f)
	}
	for _, f := range []Figure{nil, {1, math.NaN()}} {
		if !math.IsNaN(f.Mean()) || !math.IsNaN(f.Low()) || !math.IsNaN(f.High()) || f.String() != "-" {
			t.Errorf("%v has mean %v", []float64(f), f.Mean())
		}
	}
	if s := (Figure{1}).Spread(); !math.IsNaN(s) {
		t.Errorf("one seed has the spread %v", s)
	}
}
