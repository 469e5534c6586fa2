package experiment

import (
	"testing"

	"loadstar/metric"
)

func TestCompared(t *testing.T) {
	fleet := func(mean, median, below, mae float64) metric.Fleet {
		b := metric.Number(below)
		return metric.Fleet{
			"relative_mae": {Mean: metric.Number(mean), Median: metric.Number(median), BelowOne: &b},
			"mae":          {Mean: metric.Number(mae)},
		}
	}
	got := compared("a", []metric.Fleet{fleet(1, 0.75, 0.5, 2), fleet(2, 0.25, 1, 4)})
	want := Compared{Method: "a", Mean: 1.5, Median: 0.5, BelowOne: 0.75, MAE: 3, Low: 0.25, High: 0.75}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got = compared("b", []metric.Fleet{fleet(1, 0.75, 0.5, 2)})
	want = Compared{Method: "b", Mean: 1, Median: 0.75, BelowOne: 0.5, MAE: 2, Low: 0.75, High: 0.75}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
