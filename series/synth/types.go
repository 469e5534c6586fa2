package synth

// kind is a building type. Each number is the middle of the distribution from which
// traits.draw samples that property.
//
// Floor area and number of floors come from DOE's commercial reference buildings. Intensities
// are chosen so that the annual use per area is typical in EIA's CBECS 2012 (table C14), which
// TestIntensity checks. The other numbers are estimates that were tuned until the series
// resembled measured series (TestLikeMeasured).
type kind struct {
	name   string
	floor  float64 // floor area in m2
	spread float64 // standard deviation of the logarithm of the floor area
	floors int
	height float64 // height of a floor in m
	glass  float64 // ratio of windows to outside walls
	people float64 // occupants per 100 m2 when full

	// The following loads are in W per m2 of floor area.
	base float64 // always on
	full float64 // additional load when the building is full
	fans float64 // while the air conditioning runs
	yard float64 // outdoor lighting at night

	// cool and heat are in W/m2 per kelvin of difference from the outdoor temperature at
	// which the building needs neither cooling nor heating.
	cool, heat float64
	balance    float64 // balance temperature in °C; heating starts a few kelvin below it
	electric   float64 // share of buildings with electric heating

	hours    [3]shape // workday, Saturday, Sunday
	closes   rank     // lowest rank of holidays on which the building closes; noHoliday if none
	calendar seasons
	nights   bool // the air conditioning runs day and night
}

// seasons selects how occupancy differs between the weeks of a year.
type seasons uint8

const (
	steady  seasons = iota
	office          // low around New Year
	school          // empty in summer and in the breaks
	trade           // busiest before Christmas
	lodging         // full in summer
)

// shape is the occupancy over a day, as (hour, share) points from 0 to 24 h. It is linear
// between the points.
type shape [][2]float64

var (
	officeDay  = shape{{0, .04}, {5.5, .05}, {7, .3}, {8.7, .9}, {11.5, 1}, {12.6, .9}, {14, 1}, {16.5, .9}, {18, .42}, {20.5, .17}, {22.5, .06}, {24, .04}}
	officeSat  = shape{{0, .04}, {7, .05}, {9, .18}, {11, .25}, {14, .22}, {17, .1}, {20, .05}, {24, .04}}
	officeSun  = shape{{0, .04}, {9, .05}, {12, .1}, {16, .09}, {19, .05}, {24, .04}}
	hotelDay   = shape{{0, .42}, {3, .33}, {5, .42}, {7, .92}, {9, .78}, {12, .6}, {15.5, .62}, {18, .85}, {20.5, 1}, {22.5, .8}, {24, .42}}
	hotelEnd   = shape{{0, .46}, {3, .35}, {6, .42}, {8.5, .9}, {10.5, .85}, {13, .65}, {16, .66}, {18, .85}, {20.5, 1}, {22.5, .85}, {24, .46}}
	depotDay   = shape{{0, .1}, {4.5, .12}, {6.5, .8}, {9, 1}, {12, .88}, {13, 1}, {15.5, .95}, {17.5, .5}, {19.5, .2}, {24, .1}}
	depotSat   = shape{{0, .1}, {6, .12}, {8, .35}, {12, .35}, {14, .14}, {24, .1}}
	depotSun   = shape{{0, .09}, {12, .11}, {24, .09}}
	shopDay    = shape{{0, .05}, {6, .08}, {7.5, .35}, {9.2, .88}, {12, .95}, {15, 1}, {18, 1}, {20.3, .92}, {21.8, .3}, {23, .07}, {24, .05}}
	shopSun    = shape{{0, .05}, {8, .1}, {9.7, .4}, {11, .88}, {14, .97}, {17, .92}, {18.6, .35}, {20, .08}, {24, .05}}
	mallDay    = shape{{0, .12}, {5.5, .13}, {7.5, .4}, {9.5, .82}, {12.3, 1}, {15, .93}, {18.5, 1}, {20.5, .85}, {22, .45}, {23.3, .18}, {24, .12}}
	mallSun    = shape{{0, .12}, {7.5, .18}, {10.5, .72}, {13, .9}, {17, .85}, {19, .6}, {21, .32}, {23, .15}, {24, .12}}
	primaryDay = shape{{0, .03}, {5, .06}, {6.5, .45}, {8, .95}, {11.5, 1}, {13, .95}, {14.7, .85}, {16, .4}, {18, .22}, {20.5, .12}, {22, .04}, {24, .03}}
	highDay    = shape{{0, .05}, {5, .08}, {6.3, .5}, {7.7, .95}, {11.5, 1}, {14.3, .92}, {16, .55}, {18.5, .42}, {20.5, .28}, {22, .08}, {24, .05}}
	schoolEnd  = shape{{0, .04}, {8, .05}, {10, .1}, {14, .09}, {17, .05}, {24, .04}}
	wardDay    = shape{{0, .3}, {4, .27}, {6, .45}, {8.5, .92}, {11, 1}, {14, 1}, {16.5, .85}, {19, .58}, {22, .4}, {24, .3}}
	wardEnd    = shape{{0, .3}, {4, .27}, {7, .42}, {10, .62}, {14, .64}, {18, .52}, {22, .38}, {24, .3}}
	clinicDay  = shape{{0, .07}, {5, .1}, {6.5, .5}, {8.3, .95}, {11.5, 1}, {12.7, .92}, {14, 1}, {16.3, .85}, {18, .4}, {20, .18}, {22, .09}, {24, .07}}
	clinicSat  = shape{{0, .07}, {7, .1}, {8.5, .38}, {12, .42}, {14, .18}, {18, .1}, {24, .07}}
	clinicSun  = shape{{0, .07}, {10, .1}, {15, .1}, {24, .07}}
	quickDay   = shape{{0, .25}, {2, .08}, {4, .12}, {5.5, .55}, {8, .72}, {10.3, .68}, {12.2, 1}, {14, .78}, {16.5, .72}, {18.3, .98}, {20.5, .75}, {22.5, .5}, {24, .25}}
	quickEnd   = shape{{0, .3}, {2, .1}, {4.5, .12}, {6.5, .5}, {9, .74}, {12.6, 1}, {15, .82}, {18.3, .97}, {20.5, .78}, {22.5, .52}, {24, .3}}
	tableDay   = shape{{0, .12}, {2, .06}, {7.5, .08}, {9.5, .45}, {11.8, .88}, {12.8, .92}, {14.5, .62}, {16, .65}, {18.7, 1}, {20.3, .95}, {22, .6}, {23.2, .22}, {24, .12}}
	tableEnd   = shape{{0, .2}, {2, .07}, {8, .12}, {10, .55}, {12.6, .9}, {15, .72}, {18.7, 1}, {20.7, 1}, {22.3, .7}, {23.5, .32}, {24, .2}}
)

var kinds = [...]kind{
	{
		name: "small-office", floor: 511, spread: .5, floors: 1, height: 3.1, glass: .21, people: 5.4,
		base: 3.6, full: 11, fans: 2.4, yard: .7, cool: .85, heat: 1, balance: 14, electric: .45,
		hours: [3]shape{officeDay, officeSat, officeSun}, closes: minor, calendar: office,
	},
	{
		name: "medium-office", floor: 4982, spread: .5, floors: 3, height: 4, glass: .33, people: 5.4,
		base: 5.6, full: 12, fans: 3.4, yard: .5, cool: .85, heat: .8, balance: 13, electric: .35,
		hours: [3]shape{officeDay, officeSat, officeSun}, closes: minor, calendar: office,
	},
	{
		name: "large-office", floor: 46320, spread: .45, floors: 12, height: 4, glass: .38, people: 5.4,
		base: 7.2, full: 12, fans: 3.8, yard: .2, cool: .75, heat: .5, balance: 12, electric: .2,
		hours: [3]shape{officeDay, officeSat, officeSun}, closes: minor, calendar: office,
	},
	{
		name: "small-hotel", floor: 4014, spread: .4, floors: 4, height: 3, glass: .11, people: 4.5,
		base: 4.6, full: 8.5, fans: 1.8, yard: .6, cool: .6, heat: .65, balance: 15, electric: .6,
		hours: [3]shape{hotelDay, hotelEnd, hotelEnd}, calendar: lodging, nights: true,
	},
	{
		name: "large-hotel", floor: 11345, spread: .5, floors: 6, height: 3.2, glass: .27, people: 5,
		base: 6, full: 9, fans: 3, yard: .4, cool: .7, heat: .45, balance: 14, electric: .3,
		hours: [3]shape{hotelDay, hotelEnd, hotelEnd}, calendar: lodging, nights: true,
	},
	{
		name: "warehouse", floor: 4835, spread: .8, floors: 1, height: 8.5, glass: .01, people: .4,
		base: 2, full: 5.8, fans: .8, yard: .6, cool: .15, heat: .22, balance: 17, electric: .15,
		hours: [3]shape{depotDay, depotSat, depotSun}, closes: major,
	},
	{
		name: "retail-standalone", floor: 2319, spread: .65, floors: 1, height: 6.1, glass: .07, people: 16,
		base: 3.2, full: 13, fans: 2.7, yard: 1.2, cool: .75, heat: .6, balance: 13, electric: .25,
		hours: [3]shape{shopDay, shopDay, shopSun}, closes: solemn, calendar: trade,
	},
	{
		name: "retail-strip-mall", floor: 2090, spread: .6, floors: 1, height: 5.2, glass: .11, people: 10,
		base: 4.6, full: 15.5, fans: 3.2, yard: 1.6, cool: .95, heat: .7, balance: 13.5, electric: .35,
		hours: [3]shape{mallDay, mallDay, mallSun}, closes: solemn, calendar: trade,
	},
	{
		name: "primary-school", floor: 6871, spread: .35, floors: 1, height: 4, glass: .35, people: 20,
		base: 3.6, full: 11.5, fans: 3.2, yard: .5, cool: .85, heat: .7, balance: 13, electric: .25,
		hours: [3]shape{primaryDay, schoolEnd, schoolEnd}, closes: minor, calendar: school,
	},
	{
		name: "secondary-school", floor: 19592, spread: .4, floors: 2, height: 4, glass: .33, people: 16,
		base: 4.2, full: 11.5, fans: 3.5, yard: .4, cool: .85, heat: .6, balance: 13, electric: .2,
		hours: [3]shape{highDay, schoolEnd, schoolEnd}, closes: minor, calendar: school,
	},
	{
		name: "hospital", floor: 22422, spread: .55, floors: 5, height: 4.3, glass: .16, people: 5,
		base: 18, full: 13, fans: 6.5, yard: .3, cool: 1.1, heat: .5, balance: 10, electric: .1,
		hours: [3]shape{wardDay, wardEnd, wardEnd}, nights: true,
	},
	{
		name: "outpatient", floor: 3804, spread: .6, floors: 3, height: 3.3, glass: .2, people: 9,
		base: 7, full: 12, fans: 4, yard: .6, cool: .9, heat: .7, balance: 12, electric: .35,
		hours: [3]shape{clinicDay, clinicSat, clinicSun}, closes: major,
	},
	{
		name: "quick-service-restaurant", floor: 232, spread: .3, floors: 1, height: 3.4, glass: .14, people: 40,
		base: 17, full: 28, fans: 7, yard: 4, cool: 2, heat: 1.4, balance: 14, electric: .3,
		hours: [3]shape{quickDay, quickEnd, quickEnd}, closes: solemn,
	},
	{
		name: "full-service-restaurant", floor: 511, spread: .4, floors: 1, height: 3.4, glass: .17, people: 40,
		base: 15, full: 32, fans: 7, yard: 2.5, cool: 1.9, heat: 1.3, balance: 14, electric: .25,
		hours: [3]shape{tableDay, tableEnd, tableEnd}, closes: solemn,
	},
}

// kindOf returns the type of building i. Each group of 14 consecutive buildings, starting
// with building 0, contains one building of each type in random order.
func kindOf(seed uint64, i int) *kind {
	var order [len(kinds)]uint8
	s := newStream(seed, forTypes, i/len(kinds))
	for j := range order {
		k := s.below(j + 1)
		order[j] = order[k]
		order[k] = uint8(j)
	}
	return &kinds[order[i%len(kinds)]]
}
