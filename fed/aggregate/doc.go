// Package aggregate holds the rules that turn the updates which are merged together
// into one displacement of the shared weights, a file each.
//
// Products are rounded before they are added, by a conversion where the compiler
// might fuse the two: the bits are those of any other machine, as far as the
// standard library's exponential and power are.
//
// An aggregator that returns an error remembers nothing of that merge. None is safe
// for concurrent use.
package aggregate
