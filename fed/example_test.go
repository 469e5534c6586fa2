package fed_test

import (
	"fmt"

	"loadstar/fed"
)

// Every random draw comes from a source that is named by seed, purpose, round and client,
// so a repeated run makes the same draws.
func ExampleRand() {
	first := fed.Rand(1, "batches", 7, "house").IntN(1000)
	again := fed.Rand(1, "batches", 7, "house").IntN(1000)
	fmt.Println(first == again)
	// Output:
	// true
}
