package recipe

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"loadstar/fed"
)

func TestTemplate(t *testing.T) {
	for _, name := range Names() {
		for _, c := range []struct {
			model   string
			targets fed.Timespan
		}{{"bose2023", fed.Steps(0)}, {"dense", fed.Steps(0)}, {"dense", fed.Steps(24)}, {"dense", fed.Lasting(24 * time.Hour)}} {
			text, err := Template(name, c.model, c.targets)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Read(text)
			if err != nil {
				t.Fatalf("%s\n%v", text, err)
			}
			short := fmt.Sprintf("algorithm: %s\nmodel: {name: %s}", name, c.model)
			if c.targets != fed.Steps(0) {
				short = fmt.Sprintf("algorithm: %s\nmodel: {name: %s, targets: %s}", name, c.model, c.targets)
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
	if _, err := Template("fedagv", "dense", fed.Steps(0)); err == nil || !strings.Contains(err.Error(), "did you mean fedavg") {
		t.Error(err)
	}
	if _, err := Template("fedavg", "dence", fed.Steps(0)); err == nil || !strings.Contains(err.Error(), "did you mean dense") {
		t.Error(err)
	}
}
