package experiment

import (
	"math"
	"strings"
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
	if !undefined(got.Coverage) || !undefined(got.Calibrated) {
		t.Errorf("coverage %v and %v without quantiles", got.Coverage, got.Calibrated)
	}
	if got.Coverage, got.Calibrated = 0, 0; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got = compared("b", []metric.Fleet{fleet(1, 0.75, 0.5, 2)})
	want = Compared{Method: "b", Mean: 1, Median: 0.75, BelowOne: 0.5, MAE: 2, Low: 0.75, High: 0.75}
	if got.Coverage, got.Calibrated = 0, 0; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestWriteMarkdown(t *testing.T) {
	all := []Comparison{
		{Dataset: "x", Reference: "last-value", Methods: []Compared{
			{Method: "weak", Median: 0.9, Mean: 1.5, BelowOne: 0.5, Paired: &Paired{Ratio: 0.5, Low: 0.4, High: 0.6, Won: 1, Better: 0.75}, Coverage: nan, Calibrated: nan},
			{Method: "strong", Median: 0.8, Mean: 0.9, BelowOne: 1, Paired: &Paired{Ratio: 1.1, Worse: 0.25}, Coverage: nan, Calibrated: nan},
			{Method: "ours", Median: 0.7, Mean: 0.8, BelowOne: 1, Low: 0.69, High: 0.71, Seeds: 2, Diverged: 1, CPU: 12, Down: 10, Up: 20, Coverage: 0.75, Calibrated: 0.8},
		}},
		{Dataset: "y", Reference: "last-value", Generated: true, Methods: []Compared{
			{Method: "ours", Median: 0.6, Mean: 0.65, BelowOne: 1, Seeds: 2, Coverage: 0.7, Calibrated: 0.79},
		}},
	}
	var text strings.Builder
	if err := WriteMarkdown(&text, all, "ours"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Reference: last-value.",
		"| | x | y (synthetic) |\n|---|---|---|\n| strong | 0.800 (0.90, 100 %) |  |\n| weak | 0.900 (1.50, 50 %) |  |\n| ours | 0.700 (0.80, 100 %) † | 0.600 (0.65, 100 %) |\n",
		"| ours | 0.690-0.710 |",
		"| strong | 1.100 (0.000-0.000); 0 %; 0/25 % |  |\n| weak | 0.500 (0.400-0.600); 100 %; 75/0 % |  |\n",
		"| ours | 75.0 %, 80.0 % | 70.0 %, 79.0 % |",
		"| ours | 12 s, 10 + 20 |",
		"\n† Training diverged, because the validation loss ended at ten times its lowest value or more: ours on x (1 of 2 seeds).\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

func TestPrintMarksDivergence(t *testing.T) {
	table := []Comparison{{Dataset: "x", Methods: []Compared{{Method: "lost", Seeds: 3, Diverged: 2}, {Method: "good", Seeds: 3}}}}
	var text strings.Builder
	if err := Print(&text, table, ""); err != nil {
		t.Fatal(err)
	}
	if got := text.String(); strings.Count(got, "†") != 2 || !strings.Contains(got, "lost †") || !strings.Contains(got, "lost on x (2 of 3 seeds)") {
		t.Error(got)
	}
}

var nan = metric.Number(math.NaN())
