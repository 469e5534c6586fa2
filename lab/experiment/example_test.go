package experiment_test

import (
	"fmt"
	"log"

	"loadstar/lab/experiment"
)

// Read an experiment that compares two algorithms on one dataset with two seeds.
func ExampleReadSpec() {
	spec, err := experiment.ReadSpec([]byte(`
title: Does sharing help?
parts:
  - name: comparison
    datasets: [hog-core42]
    seeds: [1, 2]
    plan: {rounds: 100}
    methods:
      - {name: FedAvg, plan: {algorithm: fedavg}}
      - {name: Local, plan: {algorithm: local}}
`), false)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range spec.Parts {
		fmt.Println(p.Name, p.Datasets, p.Seeds)
		for _, m := range p.Methods {
			fmt.Println("-", m.Name, m.Plan["algorithm"])
		}
	}
	// Output:
	// comparison [hog-core42] [1 2]
	// - FedAvg fedavg
	// - Local local
}
