// Package aggregate has the rules that combine the updates of a merge into one
// displacement of the shared weights, one file per algorithm.
//
// Products are rounded before they are added. Where the compiler might fuse multiplication
// and addition, an explicit conversion prevents it. Results are therefore identical on all
// machines on which the standard library's exponential and power functions give identical
// results.
//
// If Aggregate returns an error, the aggregator's state is the same as before the call. No
// aggregator is safe for concurrent use.
package aggregate
