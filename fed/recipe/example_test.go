package recipe_test

import (
	"fmt"
	"log"

	"loadstar/fed/recipe"
)

// Read a plan. Settings that the plan leaves out get the defaults of its algorithm.
func ExampleRead() {
	plan, err := recipe.Read([]byte("name: demo\nalgorithm: fedavg\nrounds: 10\nschedule: {cohort: 5}\n"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Name, plan.Algorithm, plan.Rounds, plan.Model.Name)

	_, err = recipe.Read([]byte("name: demo\nalgorithm: fedavg\nruonds: 10\n"))
	fmt.Println(err)
	// Output:
	// demo fedavg 10 bose2023
	// line 3: ruonds is not known; did you mean rounds?
}
