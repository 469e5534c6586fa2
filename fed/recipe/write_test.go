package recipe

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestTemplate(t *testing.T) {
	for _, name := range Names() {
		for _, c := range []struct {
			model   string
			targets int
		}{{"bose2023", 0}, {"dense", 0}, {"dense", 24}} {
			text, err := Template(name, c.model, c.targets, "datasets/hog-core42.yaml")
			if err != nil {
				t.Fatal(err)
			}
			p, err := Read(text)
			if err != nil {
				t.Fatalf("%s\n%v", text, err)
			}
			short := fmt.Sprintf("algorithm: %s\ndata: datasets/hog-core42.yaml\nmodel: {name: %s}", name, c.model)
			if c.targets > 0 {
				short = fmt.Sprintf("algorithm: %s\ndata: datasets/hog-core42.yaml\nmodel: {name: %s, targets: %d}", name, c.model, c.targets)
			}
			want, err := Read([]byte(short))
			if err != nil || !reflect.DeepEqual(p, want) {
				t.Errorf("%s\nis not the default of %s, %v", text, name, err)
			}
			for line := range strings.Lines(string(text)) {
				if !strings.Contains(line, "#") && strings.Contains(line, ": ") {
					t.Errorf("%s: no comment on %q", name, line)
				}
			}
		}
	}
	if _, err := Template("fedagv", "dense", 0, ""); err == nil || !strings.Contains(err.Error(), "did you mean fedavg") {
		t.Error(err)
	}
	if _, err := Template("fedavg", "dence", 0, ""); err == nil || !strings.Contains(err.Error(), "did you mean dense") {
		t.Error(err)
	}
}
