package year

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"loadstar/fed/serve"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series/read"
)

// TestFlagsOfHonestModels checks that no client of real groups refuses an honestly trained
// model because of its forecasts with calendar flags set. It also counts the clients that
// refuse the same model with a planted weight.
func TestFlagsOfHonestModels(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains for more than half an hour")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{
		"sgsc-core19", "hog-core42", "robin-core42", "cambridge-core42-2016-17",
		"resstock-ca-core42", "resstock-tx-core42", "resstock-vt-core42",
	} {
		for _, plan := range []string{"hour-ahead", "day-ahead"} {
			t.Run(group+"/"+plan, func(t *testing.T) {
				path, root := testkit.Dataset(t, group)
				description, err := read.Load(path)
				if err != nil {
					t.Fatal(err)
				}
				d, err := read.Open(description, root)
				if err != nil {
					t.Fatal(err)
				}
				targets := map[string]int{"hour-ahead": 1, "day-ahead": 24}[plan]
				dir := train(t, d, fmt.Sprintf("name: %s\nmodel: {name: dense, targets: %d}\nalgorithm: fedavg\nrounds: 100\n", plan, targets), t.TempDir())
				folder, err := serve.Open(dir, nil, k)
				if err != nil {
					t.Fatal(err)
				}
				defer folder.Close()
				shared := append([]float32(nil), folder.Model.Shared()...)
				plant(t, folder.Model, shared, "yearend", -3.95)
				planted, err := serve.NewModel("planted", folder.Model.Plan, shared, k)
				if err != nil {
					t.Fatal(err)
				}
				var closest serve.FlagTrial
				margin, caught, part := 1e9, 0, folder.Model.Problem.Partition
				for i := range d.Len() {
					m := d.Meter(i)
					// The preceding days are not at the end of a year, where the comparison would
					// include the planted weight, nor in the week after it.
					end := m.Start + int64(len(m.Load))*d.Seconds()
					end = min(end, time.Date(time.Unix(end, 0).AddDate(0, -2, -10).Year(), 10, 20, 0, 0, 0, 0, time.UTC).Unix())
					c, err := folder.Client(m.ID)
					if err != nil {
						t.Fatal(err)
					}
					x, err := folder.Model.TryFlags(d, i, c, end)
					if err != nil {
						t.Fatal(err)
					}
					if x.Outside() || x.Flag == "" {
						t.Errorf("%s would refuse an honest model: %v", m.ID, x)
					}
					if left := -x.Beyond() / x.Deviation; left < margin {
						margin, closest = left, x
					}
					personal := make([]float32, part.PersonalLen())
					part.Cut(c.Weights, make([]float32, part.SharedLen()), personal)
					if c, err = planted.Client(personal, c.Scaling); err != nil {
						t.Fatal(err)
					}
					if x, err = planted.TryFlags(d, i, c, end); err != nil {
						t.Fatal(err)
					}
					if x.Outside() && strings.HasPrefix(x.Flag, "yearend") {
						caught++
					}
				}
				t.Logf("%s, %s: the closest of %d clients is %.2f standard deviations from refusing: %v; %d refuse the planted model", group, plan, d.Len(), margin, closest, caught)
				if caught != d.Len() {
					t.Errorf("%d of %d clients refuse the planted model", caught, d.Len())
				}
			})
		}
	}
}
