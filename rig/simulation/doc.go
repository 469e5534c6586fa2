// Package simulation runs a fleet in one process, on virtual time, under a schedule that a seed
// determines. Coordinators, gateways, regions, agents and keepers run the product's code, with
// the product's SQL statements on SQLite. Network, blobs and disks are models that can fail. The
// same seed gives the same run. Some seeds have a private run with keepers. Keys, nonces and
// seals are random even in the simulation, so names of calls do not depend on them.
//
// A testing/synctest bubble has a clock that advances only when every goroutine waits. Every
// call that leaves a part waits at a gate. When all goroutines wait, the schedule picks one of
// the calls by the seed, decides whether a fault hits the call, and lets it continue. Between
// two such moments, parts access only their own memory, so the order of their goroutines does
// not matter.
//
// The package has tests only:
//
//	make simulation SEEDS=200        # the last line is: seeds 200, faults N, violations 0
//	make simulation PRIVATE=1        # private runs only
//	make simulation SEED=17          # repeat one seed, and shrink its faults if it fails
//	make simulation-planted          # plant bugs in the product, each must be found
package simulation
