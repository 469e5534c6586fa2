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

// Tail returns the start of the shortest tail of a series that is sufficient to forecast at a
// cutoff. Both times are in Unix seconds. The cutoff is the end of the newest known step, and a
// step is seconds long. The inputs of an origin have the same bits for all tails that start at
// the returned time or whole weeks earlier, provided that all meters of the dataset start at
// that time, with missing loads before their first load. The reason is that moving sums are
// then recomputed at the same times, which are whole weeks after the Unix epoch.
func Tail(cutoff, seconds int64) int64 {
	phase := cutoff - floorDiv(cutoff, seconds)*seconds // the grid may not be aligned with UTC
	return floorDiv(cutoff-phase-TailSeconds, week)*week + phase
}
