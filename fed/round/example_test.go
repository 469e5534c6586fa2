package round_test

import (
	"fmt"
	"time"

	"loadstar/fed/recipe"
	"loadstar/fed/round"
)

// Run one synchronous round: ask two of ten clients, count their updates and close the round.
func ExampleMachine() {
	m := round.NewMachine(recipe.Synchronous{Cohort: 2, Asked: 2}, 1, 10)
	asked := m.Ask(0)
	fmt.Println("asked", len(asked), "clients")
	for _, a := range asked {
		fmt.Println("counted:", m.Return(a) == round.Counted)
	}
	outcome, closed := m.Close(30 * time.Second)
	fmt.Println("closed:", closed, "merged:", outcome.Merged, "next round:", m.Round())
	// Output:
	// asked 2 clients
	// counted: true
	// counted: true
	// closed: true merged: true next round: 1
}
