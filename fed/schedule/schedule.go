// Package schedule has the schedulers, one file each. They decide how many clients to ask
// and when to merge.
package schedule
