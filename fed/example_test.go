package fed_test

import (
	"fmt"

	"loadstar/fed"
)

// The seed, purpose, round and client determine a source of random numbers, so a repeated run
// gets the same numbers.
func ExampleRand() {
	first := fed.Rand(1, "batches", 7, "house").IntN(1000)
	again := fed.Rand(1, "batches", 7, "house").IntN(1000)
	fmt.Println(first == again)
	// Output:
	// true
}
