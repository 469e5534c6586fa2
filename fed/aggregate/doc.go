// Package aggregate has the rules that combine the updates of a merge into one
// displacement of the shared weights, one file per algorithm.
//
// Products are rounded before they are added. Where the compiler might fuse the two, an
// explicit conversion prevents it. Results are therefore identical on all machines, as
// far as the standard library's exponential and power functions are.
//
// An aggregator that returns an error keeps its state from before that merge. No
// aggregator is safe for concurrent use.
package aggregate
