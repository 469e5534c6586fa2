package recipe

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Exactly the algorithms whose server needs only sums can be private.
func TestPrivateAlgorithms(t *testing.T) {
	can := strings.Fields("fedavg fedprox fedavgm fedadagrad fedadam fedyogi scaffold fedsgd perfedavg fedmeta pfedme reptile")
	for _, a := range algorithms {
		p, err := Read([]byte("algorithm: " + a.name + "\n" + private))
		switch {
		case slices.Contains(can, a.name):
			if err != nil {
				t.Errorf("%s: %v", a.name, err)
				continue
			}
			if n := NeedsOf(p); n.EachUpdate || n.Loss {
				t.Errorf("%s needs %+v and can be private", a.name, n)
			}
			if s := p.Schedule; time.Duration(s.Deadline) != 12*time.Hour || s.Quorum != 0.7 || p.Privacy.Least != 20 || p.Privacy.Check != "norm" {
				t.Errorf("%s: the defaults are %+v and %+v", a.name, s, p.Privacy)
			}
		case err == nil:
			t.Errorf("%s can be private", a.name)
		case !a.noServer && !strings.Contains(err.Error(), "privacy.mode is private, but "+a.name+" "+a.plain+"; it must be none"):
			t.Errorf("%s: %v", a.name, err)
		}
		if q, err := Read([]byte("algorithm: " + a.name)); err != nil || Private(q) {
			t.Errorf("%s is private by default", a.name)
		}
	}
}

func TestPrivateRejected(t *testing.T) {
	for text, want := range map[string]string{
		"privacy: {mode: private}":                                                       "privacy.keepers is empty; a private plan needs the name of at least one keeper",
		"privacy: {mode: secret}":                                                        `privacy.mode is "secret"; with fedavg it must be none or private`,
		"privacy: {least: 30}":                                                           "privacy.least is not a setting of fedavg",
		"server: {robust: nearest}":                                                      "server.robust is nearest, which needs privacy.mode private",
		private + "schedule: {deadline: 25h}":                                            "schedule.deadline is 25h0m0s; in a private plan it must be at most 24h",
		private + "schedule: {quorum: 0, deadline: 0s}":                                  "schedule.deadline is 0s; a private plan needs a deadline",
		private + "server: {robust: trim}":                                               "server.robust is trim, which needs each update",
		private + "evaluate: {holdout: 0.1}":                                             "evaluate.holdout is 0.1, but held-out clients report",
		"privacy: {mode: private, keepers: [a], least: 1}":                               "privacy.least is 1; it must be at least 2",
		"privacy: {mode: private, keepers: [a], quorum: 1.5}":                            "privacy.quorum is 1.5; it must be above 0 and at most 1",
		"privacy: {mode: private, keepers: [a, b, a]}":                                   "privacy.keepers has a twice",
		"privacy: {mode: private, keepers: [A]}":                                         `privacy.keepers has "A"`,
		"privacy: {mode: private, keepers: [a, b, c, d, e]}":                             "privacy.keepers has 5 names; the maximum is 4",
		"privacy: {mode: private, keepers: [a], check: none}\nserver: {robust: nearest}": "server.robust is nearest, which needs privacy.check norm",
	} {
		if _, err := Read([]byte("algorithm: fedavg\n" + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	p, err := Read([]byte("algorithm: fedavg\n" + private))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compose(p, 19); err == nil || !strings.Contains(err.Error(), "privacy.least is 20, but a round has 19 clients") {
		t.Errorf("a fleet of 19: %v", err)
	}
	if _, err := Compose(p, 20); err != nil {
		t.Error(err)
	}
	p.Server.Robust = "nearest"
	if _, err := Compose(p, 25); err == nil || !strings.Contains(err.Error(), "a sum has 19 of the 25 clients") {
		t.Errorf("three quarters of 25: %v", err)
	}
	if _, err := Compose(p, 26); err != nil {
		t.Error(err)
	}
	if q, chosen := Sized(p, 10_000); chosen || q.Schedule.Cohort != 0 {
		t.Error("a private plan gets a cohort of its own, and keepers would refuse its sums")
	}
}
