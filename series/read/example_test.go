package read_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"loadstar/series/read"
)

// This example reads a CSV file. The description states what the columns do not show.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "dataset")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	files := map[string]string{
		"dataset.yaml": "name: demo\nzone: Europe/London\ninterval: 30m\nunit: kWh\nload: {files: [load.csv]}\n",
		"load.csv":     "meter_id,timestamp,load\nhouse,2024-01-01 00:00,0.5\nhouse,2024-01-01 00:30,0.25\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	description, err := read.Load(dir)
	if err != nil {
		log.Fatal(err)
	}
	dataset, err := read.Open(description, "")
	if err != nil {
		log.Fatal(err)
	}
	for i := range dataset.Len() {
		m := dataset.Meter(i)
		fmt.Println(m.ID, "from", dataset.Time(m.Start, 0), "in kW:", m.Load)
	}
	// Output:
	// house from 2024-01-01 00:00:00 +0000 GMT in kW: [1 0.5]
}
