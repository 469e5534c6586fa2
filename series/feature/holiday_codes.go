package feature

import (
	"slices"
	"time"

	"github.com/rickar/cal/v2"
	"github.com/rickar/cal/v2/aa"
	"github.com/rickar/cal/v2/ar"
	"github.com/rickar/cal/v2/at"
	"github.com/rickar/cal/v2/au"
	"github.com/rickar/cal/v2/be"
	"github.com/rickar/cal/v2/bg"
	"github.com/rickar/cal/v2/br"
	"github.com/rickar/cal/v2/ca"
	"github.com/rickar/cal/v2/ch"
	"github.com/rickar/cal/v2/cz"
	"github.com/rickar/cal/v2/de"
	"github.com/rickar/cal/v2/dk"
	"github.com/rickar/cal/v2/es"
	"github.com/rickar/cal/v2/fr"
	"github.com/rickar/cal/v2/gb"
	"github.com/rickar/cal/v2/gr"
	"github.com/rickar/cal/v2/hr"
	"github.com/rickar/cal/v2/ie"
	"github.com/rickar/cal/v2/it"
	"github.com/rickar/cal/v2/jp"
	"github.com/rickar/cal/v2/lt"
	"github.com/rickar/cal/v2/lv"
	"github.com/rickar/cal/v2/nl"
	"github.com/rickar/cal/v2/no"
	"github.com/rickar/cal/v2/nz"
	"github.com/rickar/cal/v2/pl"
	"github.com/rickar/cal/v2/ro"
	"github.com/rickar/cal/v2/se"
	"github.com/rickar/cal/v2/si"
	"github.com/rickar/cal/v2/sk"
	"github.com/rickar/cal/v2/ua"
	"github.com/rickar/cal/v2/us"
	"github.com/rickar/cal/v2/za"
)

// byCode maps the ISO 3166 code of a country, or of a region of a country, to its holidays.
var byCode = map[string][]*cal.Holiday{
	"AR":     ar.Holidays,
	"AT":     at.Holidays,
	"AU":     {au.NewYear, au.AustraliaDay, au.GoodFriday, au.EasterMonday, au.AnzacDay, au.MourningDay2022, au.ChristmasDay, au.BoxingDay},
	"AU-ACT": au.HolidaysACT,
	"AU-NSW": au.HolidaysNSW,
	"AU-NT":  au.HolidaysNT,
	"AU-QLD": au.HolidaysQLD,
	"AU-SA":  au.HolidaysSA,
	"AU-TAS": au.HolidaysTAS,
	"AU-VIC": au.HolidaysVIC,
	"AU-WA":  au.HolidaysWA,
	"BE":     be.Holidays,
	"BG":     bg.Holidays,
	"BR":     br.Holidays,
	"CA":     ca.Holidays,
	"CH":     ch.Holidays,
	"CH-AG":  ch.HolidaysAG,
	"CH-AI":  ch.HolidaysAI,
	"CH-AR":  ch.HolidaysAR,
	"CH-BE":  ch.HolidaysBE,
	"CH-BL":  ch.HolidaysBL,
	"CH-BS":  ch.HolidaysBS,
	"CH-FR":  ch.HolidaysFR,
	"CH-GE":  ch.HolidaysGE,
	"CH-GL":  ch.HolidaysGL,
	"CH-GR":  ch.HolidaysGR,
	"CH-JU":  ch.HolidaysJU,
	"CH-LU":  ch.HolidaysLU,
	"CH-NE":  ch.HolidaysNE,
	"CH-NW":  ch.HolidaysNW,
	"CH-OW":  ch.HolidaysOW,
	"CH-SG":  ch.HolidaysSG,
	"CH-SH":  ch.HolidaysSH,
	"CH-SO":  ch.HolidaysSO,
	"CH-SZ":  ch.HolidaysSZ,
	"CH-TG":  ch.HolidaysTG,
	"CH-TI":  ch.HolidaysTI,
	"CH-UR":  ch.HolidaysUR,
	"CH-VD":  ch.HolidaysVD,
	"CH-VS":  ch.HolidaysVS,
	"CH-ZG":  ch.HolidaysZG,
	"CH-ZH":  ch.HolidaysZH,
	"CZ":     cz.Holidays,
	"DE":     de.Holidays,
	"DE-BB":  de.HolidaysBB,
	"DE-BE":  de.HolidaysBE,
	"DE-BW":  de.HolidaysBW,
	"DE-BY":  de.HolidaysBY,
	"DE-HB":  de.HolidaysHB,
	"DE-HE":  de.HolidaysHE,
	"DE-HH":  de.HolidaysHH,
	"DE-MV":  de.HolidaysMV,
	"DE-NI":  de.HolidaysNI,
	"DE-NW":  de.HolidaysNW,
	"DE-RP":  de.HolidaysRP,
	"DE-SH":  de.HolidaysSH,
	"DE-SL":  de.HolidaysSL,
	"DE-SN":  de.HolidaysSN,
	"DE-ST":  de.HolidaysST,
	"DE-TH":  de.HolidaysTH,
	"DK":     dk.Holidays,
	"ES":     es.Holidays,
	"FI":     finland,
	"FR":     fr.Holidays,
	"GB":     england,
	"GB-ENG": england,
	"GB-NIR": slices.Concat(england, []*cal.Holiday{date("St Patrick's Day", time.March, 17, britishMonday), date("Battle of the Boyne", time.July, 12, britishMonday)}),
	"GB-SCT": scotland,
	"GB-WLS": england,
	"GR":     gr.Holidays,
	"HR":     hr.Holidays,
	"IE":     ie.Holidays,
	"IT":     it.Holidays,
	"JP":     jp.Holidays,
	"LT":     lt.Holidays,
	"LU":     luxembourg,
	"LV":     lv.Holidays,
	"NL":     nl.Holidays,
	"NO":     no.Holidays,
	"NZ":     nz.Holidays,
	"PL":     pl.Holidays,
	"PT":     portugal,
	"RO":     ro.Holidays,
	"SE":     se.Holidays,
	"SI":     si.Holidays,
	"SK":     sk.Holidays,
	"UA":     ua.Holidays,
	// Most offices are closed on the day after Thanksgiving.
	"US": slices.Concat(us.Holidays, []*cal.Holiday{us.DayAfterThanksgivingDay}),
	"ZA": za.Holidays,
}

// britishMonday is the rule that moves a holiday at a weekend to Monday.
var britishMonday = []cal.AltDay{{Day: time.Saturday, Offset: 2}, {Day: time.Sunday, Offset: 1}}

// england contains the bank holidays of England and Wales, including one-off holidays that the
// library lacks.
var england = slices.Concat(without(gb.Holidays, gb.SpringHoliday), []*cal.Holiday{
	gb.SpringHoliday.Clone(&cal.Holiday{Except: []int{2012, 2022}}),
	once("Royal wedding", 2011, time.April, 29),
	once("Spring bank holiday", 2012, time.June, 4),
	once("Diamond Jubilee", 2012, time.June, 5),
	once("State funeral of Queen Elizabeth II", 2022, time.September, 19),
})

var scotland = slices.Concat(without(england, gb.EasterMonday, gb.SummerHoliday), []*cal.Holiday{
	gb.SummerHolidayScotland,
	date("2 January", time.January, 2, []cal.AltDay{{Day: time.Saturday, Offset: 2}, {Day: time.Sunday, Offset: 2}, {Day: time.Monday, Offset: 1}}),
	date("St Andrew's Day", time.November, 30, britishMonday),
})

var portugal = []*cal.Holiday{
	aa.NewYear, aa.GoodFriday, easter("Easter Sunday", 0), aa.WorkersDay,
	date("Freedom Day", time.April, 25, nil), date("Portugal Day", time.June, 10, nil), aa.AssumptionOfMary,
	suspended(easter("Corpus Christi", 60)), suspended(date("Republic Day", time.October, 5, nil)),
	suspended(date("All Saints' Day", time.November, 1, nil)), suspended(date("Restoration of Independence", time.December, 1, nil)),
	aa.ImmaculateConception, aa.ChristmasDay,
}

var luxembourg = []*cal.Holiday{
	aa.NewYear, aa.EasterMonday, aa.WorkersDay, date("Europe Day", time.May, 9, nil).Clone(&cal.Holiday{StartYear: 2019}),
	easter("Ascension Day", 39), easter("Whit Monday", 50), date("National Day", time.June, 23, nil),
	aa.AssumptionOfMary, aa.AllSaintsDay, aa.ChristmasDay, aa.ChristmasDay2,
}

var finland = []*cal.Holiday{
	aa.NewYear, aa.Epiphany, aa.GoodFriday, easter("Easter Sunday", 0), aa.EasterMonday, aa.WorkersDay,
	easter("Ascension Day", 39), easter("Whit Sunday", 49), weekdayFrom("Midsummer Eve", time.June, 19, time.Friday),
	weekdayFrom("Midsummer Day", time.June, 20, time.Saturday), weekdayFrom("All Saints' Day", time.October, 31, time.Saturday),
	date("Independence Day", time.December, 6, nil), date("Christmas Eve", time.December, 24, nil), aa.ChristmasDay, aa.ChristmasDay2,
}

func date(name string, month time.Month, day int, observed []cal.AltDay) *cal.Holiday {
	return &cal.Holiday{Name: name, Month: month, Day: day, Observed: observed, Func: cal.CalcDayOfMonth}
}

func once(name string, year int, month time.Month, day int) *cal.Holiday {
	return &cal.Holiday{Name: name, Month: month, Day: day, StartYear: year, EndYear: year, Func: cal.CalcDayOfMonth}
}

func easter(name string, offset int) *cal.Holiday {
	return &cal.Holiday{Name: name, Offset: offset, Func: cal.CalcEasterOffset}
}

// weekdayFrom returns a holiday that falls on the first given weekday on or after a date.
func weekdayFrom(name string, month time.Month, day int, weekday time.Weekday) *cal.Holiday {
	return &cal.Holiday{Name: name, Month: month, Day: day, Weekday: weekday, Offset: 1, Func: cal.CalcWeekdayFrom}
}

// suspended returns a Portuguese holiday that was not observed from 2013 to 2015.
func suspended(h *cal.Holiday) *cal.Holiday {
	h.Except = []int{2013, 2014, 2015}
	return h
}

func without(all []*cal.Holiday, some ...*cal.Holiday) []*cal.Holiday {
	return slices.DeleteFunc(slices.Clone(all), func(h *cal.Holiday) bool { return slices.Contains(some, h) })
}
