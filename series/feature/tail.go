package feature

// tailDays is the number of days before the end of the newest known step in which a load
// can affect the inputs. A moving sum over a week depends on the loads of 14 days,
// because it is recomputed once a week. A load that is 28 days older may replace each of
// these loads. Two more days allow for the special replacements on the first day of a
// series, and for clock changes.
const tailDays = 14 + oldestFill + 2

// TailSeconds is the minimum length of a tail in seconds.
const TailSeconds = tailDays * 86400

const week = 7 * 86400

// Tail returns the start of the shortest tail of a series that is enough to forecast at a
// cutoff. Both are Unix seconds, and the cutoff is the end of the newest known step, which
// is seconds long. The inputs of an origin have the same bits for all tails that start at
// this time or a number of weeks earlier. The condition is that all meters of the dataset
// start there, with missing loads before their first one. The reason is that their moving
// sums are recomputed at the same times, which are weeks of the Unix epoch.
func Tail(cutoff, seconds int64) int64 {
	phase := cutoff - floorDiv(cutoff, seconds)*seconds // phase of a grid that is not aligned with UTC
	return floorDiv(cutoff-phase-TailSeconds, week)*week + phase
}
