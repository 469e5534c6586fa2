package command

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/internal/testkit"
)

// TestCheckPrivatePlan checks that the output for a private plan states what the agent's policy
// requires of keepers.
func TestCheckPrivatePlan(t *testing.T) {
	dir := t.TempDir()
	plan, path := filepath.Join(dir, "plan.yaml"), filepath.Join(dir, "agent.yaml")
	pin := "sha256:" + strings.Repeat("0a", 32)
	for _, x := range []struct{ policy, privacy, says, refuses string }{
		{"", "least: 20", "", "this agent trusts no keeper (policy.keepers)"},
		{"keepers: [" + pin + "]", "least: 20", ": ok", ""},
		{"keepers: [" + pin + "]", "least: 20", "the agent trains it if each of its keepers has least: 20 or more in keeper.yaml (policy.least_members)", ""},
		{"keepers: [" + pin + "]", "least: 2", "", "would decline it: privacy.least is 2 and policy.least_members is 20, unless each of its keepers has least: 20 or more in keeper.yaml"},
		{"keepers: [" + pin + "], least_members: 2", "least: 2", "the agent trains it if each of its keepers has least: 2 or more", ""},
		{"keepers: [" + pin + "], least_members: 2", "keepers: [a, b]", "", "the plan has 2 keepers, and this agent trusts 1 (policy.keepers)"},
		{"private: never", "least: 20", "", "this agent trains only plain plans (policy.private)"},
	} {
		keepers := "keepers: [a], "
		if strings.HasPrefix(x.privacy, "keepers") {
			keepers = ""
		}
		text := fmt.Sprintf("algorithm: fedavg\nclient: {batch: 64}\nprivacy: {mode: private, %s%s}\n", keepers, x.privacy)
		testkit.Must(t, os.WriteFile(plan, []byte(text), 0o600))
		text = fmt.Sprintf("site: {zone: Europe/Berlin, interval: 1h}\nserver: none\nclients: {a: }\npolicy: {%s}\n", x.policy)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		var said buffer
		err := Check(t.Context(), Options{Config: path, Out: &said, Log: slog.New(slog.DiscardHandler)}, plan)
		if (err != nil) != (x.refuses != "") || err != nil && !strings.Contains(err.Error(), x.refuses) || !strings.Contains(said.String(), x.says) {
			t.Errorf("policy {%s}, plan with %s: %v\n%s", x.policy, x.privacy, err, said.String())
		}
	}
}
