package report

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestBoxChart(t *testing.T) {
	nan := math.NaN()
	c := BoxChart{Title: "Loads", Note: "Over time.", Of: "building", Value: "load", Unit: "kW", Generated: true, Boxes: []Box{
		{"a", [5]float64{0, 1, 2, 3, 4}, 2.5},
		{"none", [5]float64{nan, nan, nan, nan, nan}, nan},
		{"b", [5]float64{100, 200, 300, 400, 500}, 310},
		{"zero", [5]float64{}, 0},
	}}
	f := c.figure()
	text, err := json.Marshal(f.data)
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Series []struct {
			Name string
			Q, V []float64
		}
		Names  []string
		Domain []float64
		Dense  bool
	}
	if err := json.Unmarshal(text, &data); err != nil {
		t.Fatal(err)
	}
	// The largest median is first. Buildings without a positive load are not drawn.
	if len(data.Series) != 2 || data.Series[0].Name != "b" || data.Series[1].Name != "a" || !data.Dense {
		t.Fatalf("%s", text)
	}
	if q := data.Series[0].Q; q[0] != 100 || q[2] != 300 || q[4] != 500 || data.Series[0].V[0] != 310 {
		t.Errorf("%s", text)
	}
	// The axis goes from the lowest positive quantile to the highest one, with a margin.
	if d := data.Domain; d[0] < 0.9 || d[0] >= 1 || d[1] <= 500 || d[1] > 560 {
		t.Errorf("the axis is %v", d)
	}
	if len(f.Tables) != 1 || len(f.Tables[0].Rows) != 4 || f.Tables[0].Rows[0][3] != "300" || !f.Tables[0].Generated {
		t.Errorf("%+v", f.Tables)
	}
	for _, want := range []string{"Over time. Each box", "cuts off the lower whiskers of 1 building.", "2 buildings without a positive load"} {
		if !strings.Contains(f.Caption, want) {
			t.Errorf("the caption %q does not say %q", f.Caption, want)
		}
	}
	if !strings.Contains(f.Alt, "2 buildings; medians from 2.00 to 300 kW") {
		t.Error(f.Alt)
	}

	// A chart without boxes still has an axis, and a list that JavaScript can iterate over.
	text, err = json.Marshal(BoxChart{}.figure().data)
	if err != nil || !strings.Contains(string(text), `"series":[]`) || strings.Contains(string(text), `"domain":[null`) {
		t.Errorf("%s, %v", text, err)
	}
}
