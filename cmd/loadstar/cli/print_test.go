package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	v1 "loadstar/proto/loadstar/v1"
)

func TestZeros(t *testing.T) {
	var b bytes.Buffer
	if err := PrintLine(&b, map[string]any{"rounds": []*v1.Round{{State: "open"}}, "n": 1}); err != nil {
		t.Fatal(err)
	}
	var all struct {
		Rounds []map[string]any
	}
	decode(t, b.Bytes(), &all)
	for _, key := range []string{"round", "version", "asked", "counted", "loss"} {
		if all.Rounds[0][key] != 0.0 {
			t.Errorf("%s is %v, want 0:\n%s", key, all.Rounds[0][key], b.Bytes())
		}
	}
	b.Reset()
	if err := PrintLine(&b, (*v1.Run)(nil)); err != nil || b.String() != "null\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	w := NewCSV(&b)
	inner := NewTable(w, 0)
	fmt.Fprintf(inner, "NAME\tMB\t\n")
	fmt.Fprintf(inner, "a, b\t")
	fmt.Fprintf(inner, "%6.2f\t\n", 1.5)
	fmt.Fprintf(inner, "=HYPERLINK(1)\t-1.5\t\n@SUM(1)\t-\t\n") // names that hostile agents could choose
	fmt.Fprintln(w, "2 rows")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "NAME,MB\n\"a, b\",1.50\n'=HYPERLINK(1),-1.5\n'@SUM(1),-\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
}
