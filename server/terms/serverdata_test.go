package terms

import (
	"strings"
	"testing"
)

// TestServerDataRefusals checks plans that need data on the server.
func TestServerDataRefusals(t *testing.T) {
	own := planOf(t, "algorithm: fedsim\n"+small)
	if err := Federated(own, false); err == nil || !strings.Contains(err.Error(), "algorithm fedsim needs readings on the server, which has none; start every coordinator with rounds.data in server.yaml") {
		t.Errorf("without data: %v", err)
	}
	if err := Federated(own, true); err != nil {
		t.Errorf("with data: %v", err)
	}
	for text, want := range map[string]string{
		"client: {batch: 32}\n": "start server-data needs readings on the server, which has none",
		"client: {batch: 8}\n":  "client.batch is 8 and start is server-data; in a fleet it must be at least 16",
	} {
		start := planOf(t, "algorithm: fedavg\nstart: server-data\n"+text+small)
		if err := Federated(start, strings.Contains(text, "8")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
