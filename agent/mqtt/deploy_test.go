package mqtt

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// TestHomeAssistantExamples checks deploy/home-assistant. The files must be valid YAML and
// refer only to sensors that discovery creates for a client main-panel, and to fields that
// forecasts have.
func TestHomeAssistantExamples(t *testing.T) {
	// Home Assistant derives the ID of an entity from the names of device and sensor.
	slug := func(name string) string {
		return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "_"), "_")
	}
	c := &Client{}
	known := map[string]bool{}
	cutoff := time.Date(2026, 11, 15, 14, 0, 0, 0, time.UTC)
	f := ramp(cutoff, cutoff, 15*time.Minute, 192, "Europe/Berlin")
	f.Client = "main-panel"
	for _, s := range sensors {
		d := c.describe(s, f)
		known["sensor."+slug(d.Device.Name)+"_"+slug(d.Name)] = true
	}
	payload, err := Payload(f)
	if err != nil {
		t.Fatal(err)
	}
	var forecast struct{ Values map[string]any }
	if err := json.Unmarshal(payload, &forecast); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../deploy/home-assistant/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	used := map[string]bool{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var any any
		if err := yaml.Unmarshal(data, &any); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, id := range regexp.MustCompile(`sensor\.loadstar_\w+`).FindAllString(string(data), -1) {
			used[id] = true
			if !known[id] {
				t.Errorf("%s: %s does not exist; there is %v", path, id, known)
			}
		}
		for _, m := range regexp.MustCompile(`\bv\.(\w+)`).FindAllStringSubmatch(string(data), -1) {
			if _, ok := forecast.Values[m[1]]; !ok {
				t.Errorf("%s: a forecast has no values.%s; it has %s", path, m[1], payload)
			}
		}
	}
	if len(used) < 4 {
		t.Errorf("the examples use only %v", used)
	}
}
