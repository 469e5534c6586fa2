package operate

import (
	"fmt"
	"strings"
	"testing"

	v1 "loadstar/proto/loadstar/v1"
)

func TestPickRun(t *testing.T) {
	all := []*v1.Run{{Id: "kbcdefgh", Name: "day"}, {Id: "kbzzzzzz", Name: "plfl-head"}, {Id: "aaaaaaaa", Name: "day"}}
	for name, want := range map[string]string{
		"@last": "kbcdefgh", "kbcdefgh": "kbcdefgh", "kbc": "kbcdefgh", "a": "aaaaaaaa", "day": "kbcdefgh", "plfl-head": "kbzzzzzz",
	} {
		if got, err := pickRun(all, name); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for name, want := range map[string]string{
		"kb":        "several runs begin with kb: kbcdefgh, kbzzzzzz",
		"plfl-haed": "did you mean plfl-head?",
		"nonsense!": "the newest are kbcdefgh (day), kbzzzzzz (plfl-head), aaaaaaaa (day)",
		"":          "empty",
	} {
		if got, err := pickRun(all, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	if _, err := pickRun(nil, "x"); err == nil || !strings.Contains(err.Error(), "run start") {
		t.Errorf("%v does not say how to start a run", err)
	}
	// A run may be older than the runs that the server lists.
	for i := range recent {
		all = append(all, &v1.Run{Id: fmt.Sprintf("x%07d", i)})
	}
	if got, err := pickRun(all, "oldoldol"); err != nil || got != "oldoldol" {
		t.Errorf("%s, %v", got, err)
	}
}
