package feature

// tailDays is how many days before the end of the newest known step a load can have an
// effect on the inputs. A moving sum over a week depends on the loads of 14 days, because
// it is computed anew once a week. Each of them may be replaced by a load that is 28 days
// older. The first day of a series has replacements of its own, and clocks change.
const tailDays = 14 + oldestFill + 2

// TailSeconds is the minimum length of a tail in seconds.
const TailSeconds = tailDays * 86400

const week = 7 * 86400

// Tail returns the start of the shortest tail of a series that is enough to forecast at a
// cutoff. Both are Unix seconds, and the cutoff is the end of the newest known step, which
// is seconds long. The inputs of an origin have the same bits for all tails that start at
// this time or a number of weeks before it, if all meters of the dataset start there, with
// missing loads before their first one: their moving sums are computed anew at the same
// times, which are weeks of the Unix epoch.
func Tail(cutoff, seconds int64) int64 {
	phase := cutoff - floorDiv(cutoff, seconds)*seconds // of a grid that is not that of UTC
	return floorDiv(cutoff-phase-TailSeconds, week)*week + phase
}
