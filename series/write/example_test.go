package write_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"loadstar/series"
	"loadstar/series/read"
	"loadstar/series/write"
)

// This example writes a load table in Parquet and reads it back.
func ExampleCreateLoad() {
	dir, err := os.MkdirTemp("", "dataset")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	table, err := write.CreateLoad(filepath.Join(dir, "load.parquet"))
	if err != nil {
		log.Fatal(err)
	}
	defer table.Discard()
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := table.Meter(series.Meter{ID: "house", Start: start.Unix(), Load: []float32{1, 0.5}}, time.Hour); err != nil {
		log.Fatal(err)
	}
	if err := table.Close(); err != nil {
		log.Fatal(err)
	}
	description := &read.Description{Name: "demo", Zone: "UTC", Interval: "1h", Load: read.Table{Files: []string{"load.parquet"}}}
	if err := description.Write(filepath.Join(dir, read.FileName)); err != nil {
		log.Fatal(err)
	}
	if description, err = read.Load(dir); err != nil {
		log.Fatal(err)
	}
	dataset, err := read.Open(description, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(dataset.Meter(0).ID, dataset.Meter(0).Load)
	// Output:
	// house [1 0.5]
}
