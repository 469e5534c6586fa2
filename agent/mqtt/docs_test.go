package mqtt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/agent/config"
)

// TestDocumentedConfiguration checks that the configurations with MQTT in docs/agent.md are
// accepted, and that the document names all presets.
func TestDocumentedConfiguration(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		switch {
		case strings.HasPrefix(text, "mqtt:"):
			text = "site: {zone: UTC}\nclients: {a: }\n" + text
		case !strings.HasPrefix(text, "site:") || !strings.Contains(text, "\nmqtt:"):
			continue
		}
		n++
		c, err := config.Parse([]byte(text), nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		if _, err := New(Settings(c), nil, noForecasts{}); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if n < 2 {
		t.Errorf("the page has %d configurations with MQTT", n)
	}
	for _, preset := range Presets {
		if !strings.Contains(string(page), "| `"+preset+"` |") {
			t.Errorf("the page does not describe the preset %s", preset)
		}
	}
}
