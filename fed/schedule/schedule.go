// Package schedule decides how many clients to ask and when to merge, one file per
// schedule.
package schedule
