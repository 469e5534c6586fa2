package synth_test

import (
	"fmt"
	"log"

	"loadstar/series/synth"
)

// This example generates a day of synthetic load for three buildings.
func ExampleNew() {
	g, err := synth.New(synth.Config{Seed: 1, Meters: 3, Days: 1})
	if err != nil {
		log.Fatal(err)
	}
	load := make([]float32, g.Len())
	for i := range g.Config().Meters {
		b := g.Building(i, load)
		fmt.Printf("%s: %d hours, %.1f kW at noon\n", b.ID, len(load), load[12])
	}
	// Output:
	// gen_retail-strip-mall_000000: 24 hours, 26.6 kW at noon
	// gen_medium-office_000001: 24 hours, 70.7 kW at noon
	// gen_retail-standalone_000002: 24 hours, 77.2 kW at noon
}
