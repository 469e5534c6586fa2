// Package aggregate contains the rules that combine the updates of a merge into one
// displacement of the shared weights, one file per algorithm.
//
// Products are rounded before they are added. An explicit conversion prevents the compiler from
// fusing a multiplication with an addition. Results are therefore identical on all machines
// whose standard library computes identical exponentials and powers.
//
// If Aggregate returns an error, the aggregator's state is the same as before the call. No
// aggregator is safe for concurrent use.
package aggregate
