package experiment

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/forecast"
	"loadstar/lab/run"
)

func TestPeers(t *testing.T) {
	dir := t.TempDir()
	text := "# a comment\nclient\tmethod\trows\ttrees\tvalidation_mae\ttest_mae\tcpu_s\n" +
		"a\tpersistence\t0\t0\t9\t4\t0\n" + "b\tpersistence\t0\t0\t9\t2\t0\n" + "a\tnaive-week\t0\t0\t9\t8\t0\n" +
		"a\tboosting-absolute_error\t10\t5\t9\t2\t1\n" + "b\tboosting-absolute_error\t10\t5\t9\t3\t1\n"
	if err := os.WriteFile(filepath.Join(dir, "x-1.tsv"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	peers, reference, err := readPeers(dir, "x", 1, forecast.LastValue)
	if err != nil || len(peers) != 1 || reference["a"] != 4 || reference["b"] != 2 {
		t.Fatalf("%v, %v, %v", peers, reference, err)
	}
	own := [][]run.Client{
		{{Client: "a", MAE: 1, RelativeMAE: 0.25, ModelRelativeMAE: 0.5}, {Client: "c", MAE: 1, RelativeMAE: 1, ModelRelativeMAE: 1}},
		{{Client: "a", MAE: 2, RelativeMAE: 0.5, ModelRelativeMAE: 0.5}, {Client: "c", MAE: 1, RelativeMAE: 1, ModelRelativeMAE: 1}},
	}
	c, err := comparePeer(peers[0], reference, own)
	if err != nil {
		t.Fatal(err)
	}
	// The peer's relative errors are 2/4 for client a and 3/2 for client b. Only client a is
	// also a client of the subject, whose mean MAE is 1.5, or 2 without correction.
	if c.Method != "boosting-absolute_error, 2 clients" || c.Median != 1 || c.BelowOne != 0.5 || c.MAE != 2.5 || c.Seeds != 0 {
		t.Errorf("%+v", c)
	}
	if p := c.Paired; p.Clients != 1 || p.Ratio != 0.75 || p.Won != 1 || p.Uncorrected != 1 || !math.IsNaN(float64(p.Better)) {
		t.Errorf("%+v", c.Paired)
	}
	if p := c.Paired; p.Low != 0.75 || p.High != 0.75 {
		t.Errorf("the interval of one client is %g to %g", p.Low, p.High)
	}
	// If the reference's error is 4, an MAE of 1 with a relative error of 0.5 must belong to
	// other targets.
	own[1][0].RelativeMAE = 0.5001
	if _, err := comparePeer(peers[0], reference, own); err == nil || !strings.Contains(err.Error(), "client a") {
		t.Errorf("%v for other targets", err)
	}
	if peers, _, err := readPeers(dir, "y", 1, forecast.LastValue); err != nil || peers != nil {
		t.Errorf("%v, %v for a dataset without a table", peers, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "z-1.tsv"), []byte("a\tboosting\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readPeers(dir, "z", 1, forecast.LastValue); err == nil || !strings.Contains(err.Error(), "z-1.tsv:1: 2 fields") {
		t.Errorf("%v for a damaged table", err)
	}
}
