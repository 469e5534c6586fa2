package run_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"loadstar/lab/run"
)

// Create the folder of a run, add a row to its table of rounds, and read the table.
func ExampleCreate() {
	dir, err := os.MkdirTemp("", "runs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dir = filepath.Join(dir, "demo")
	folder, err := run.Create(dir, []byte("name: demo\n"))
	if err != nil {
		log.Fatal(err)
	}
	if err := folder.OpenTables(run.Offsets{}); err != nil {
		log.Fatal(err)
	}
	if err := folder.Rounds.Append(run.Round{Round: 0, Version: 1, Outcome: "merged", Counted: 5, Loss: 0.25}); err != nil {
		log.Fatal(err)
	}
	if err := folder.Close(); err != nil {
		log.Fatal(err)
	}
	rounds, err := run.Read[run.Round](dir, "rounds")
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range rounds {
		fmt.Println("round", r.Round, r.Outcome, "with", r.Counted, "clients, loss", r.Loss)
	}
	// Output:
	// round 0 merged with 5 clients, loss 0.25
}
