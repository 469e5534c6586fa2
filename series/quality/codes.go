package quality

import (
	"slices"
)

// Code identifies a kind of finding. Codes are stable, so scripts can rely on them.
type Code string

const (
	codeEmpty       Code = "empty"
	codeConstant    Code = "constant"
	codeTooShort    Code = "too-short"
	codeUnderAYear  Code = "under-a-year"
	codeGaps        Code = "gaps"
	codeDuplicates  Code = "duplicates"
	codeConflicts   Code = "conflicts"
	codeOutOfOrder  Code = "out-of-order"
	codeOffGrid     Code = "off-grid"
	codeNonexistent Code = "nonexistent"
	codeNegatives   Code = "negatives"
	codeZeros       Code = "zeros"
	codeZerosAsGaps Code = "zeros-as-gaps"
	codeDropouts    Code = "dropouts"
	codeRepeats     Code = "repeats"
	codeFlat        Code = "flat"
	codeImpossible  Code = "impossible"
	codeSpikes      Code = "spikes"
	codeClipped     Code = "clipped"
	codeCatchUp     Code = "catch-up"
	codeBeat        Code = "beat"
	codeUnitJump    Code = "unit-jump"
	codeLevelJump   Code = "level-jump"
	codeClockShift  Code = "clock-shift"
	codeClockChange Code = "clock-change"
	codeYearStart   Code = "year-start"
	codeMonthStart  Code = "month-start"

	// These codes occur only in fleet reports.
	codeSharedGaps Code = "shared-gaps"
	codeSharedFlat Code = "shared-flat"
	codeScale      Code = "scale"
	codeTwins      Code = "twins"
	codeWeather    Code = "weather"
)

// CodeInfo describes what a code means and what to do about findings with this code.
type CodeInfo struct {
	Code            Code
	Meaning, Advice string
}

var codes = []CodeInfo{
	{codeEmpty, "no readings", "remove the meter"},
	{codeConstant, "all readings are equal", "remove the meter: there is nothing to learn"},
	{codeTooShort, "too few training windows for the plan", "remove the meter, or shorten lookback and horizon"},
	{codeUnderAYear, "the readings do not cover every season", "expect larger errors in the missing seasons"},
	{codeGaps, "steps without a reading", "nothing: windows with missing values are skipped; do not fill gaps with numbers"},
	{codeDuplicates, "rows that repeat an earlier row", "nothing: the first row is used"},
	{codeConflicts, "rows that contradict an earlier row", "export only the correct row; until then the first row is used"},
	{codeOutOfOrder, "rows that are not in chronological order", "nothing: rows are sorted"},
	{codeOffGrid, "rows between two steps, which are dropped", "check interval in dataset.yaml"},
	{codeNonexistent, "rows in the hour that clocks skip, which are dropped", "if the labels do not follow daylight saving, set clock: standard"},
	{codeNegatives, "values below zero", "keep them if the meter exports energy (solar); otherwise check the sign"},
	{codeZeros, "zeros that may be real", "find out whether missing readings are written as 0"},
	{codeZerosAsGaps, "zeros where the load is usually well above zero, or for days on end", "export missing readings as empty; remove periods when the building was switched off"},
	{codeDropouts, "values far below the daily minimum", "export them as empty if the building was not switched off"},
	{codeRepeats, "many values equal the previous one", "nothing, if the meter has a coarse resolution"},
	{codeFlat, "long runs of one value, from a stuck meter or filled gaps", "export stuck or filled readings as empty"},
	{codeImpossible, "values far above the client's usual load, which are kept but not used", "check the meter, its unit and its transformer ratio; if the values are right, accept the new scale"},
	{codeSpikes, "single values far above all others", "export them as empty: scaling to their range compresses all other values"},
	{codeClipped, "values look cut off at an upper limit", "find out what limits the values: the true load was higher"},
	{codeCatchUp, "a high value right after a gap; it includes the energy used during the gap", "export it as empty"},
	{codeBeat, "values are too high at regular intervals, because they cover one extra reading", "export at the logger's own interval, or export the register and take differences"},
	{codeUnitJump, "low and high values become larger by the same factor from one day to the next", "check unit and transformer ratio before and after, and rescale one side"},
	{codeLevelJump, "the level changes permanently from one day to the next", "train on the period after the jump, if the new level will last"},
	{codeClockShift, "the daily profile shifts by hours from one day to the next", "check zone and clock in dataset.yaml, or correct the labels"},
	{codeClockChange, "readings in the hour that daylight saving time skips or repeats are unusual", "the labels follow the legal clock: set clock: legal, and check stamp"},
	{codeYearStart, "the first step of the year is unusual", "export it as empty, or correct how years are joined"},
	{codeMonthStart, "the first step of the month is unusual", "export it as empty, or correct how months are joined"},
	{codeSharedGaps, "readings of most meters are missing at the same time", "check the data collection, not the meters"},
	{codeSharedFlat, "many meters are flat at the same time", "check the data collection: it filled a gap with one value"},
	{codeScale, "some meters are hundreds of times larger or smaller than most", "check their unit"},
	{codeTwins, "some meters have the same readings", "keep one of them"},
	{codeWeather, "weather is missing for some steps", "nothing: windows with missing weather are skipped if the plan uses this column"},
}

// Codes returns all codes and their descriptions.
func Codes() []CodeInfo { return slices.Clone(codes) }

func (c Code) advice() string {
	for _, x := range codes {
		if x.Code == c {
			return x.Advice
		}
	}
	return ""
}
