package read

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// espiEntry is an Atom entry and the ESPI resource in it. Resources refer to each other
// by links.
type espiEntry struct {
	ID    string `xml:"id"`
	Title string `xml:"title"`
	Links []struct {
		Rel  string `xml:"rel,attr"`
		Href string `xml:"href,attr"`
	} `xml:"link"`
	Content struct {
		UsagePoint *struct {
			Kind *int `xml:"ServiceCategory>kind"`
		} `xml:"UsagePoint"`
		MeterReading *struct{}        `xml:"MeterReading"`
		ReadingType  *espiReadingType `xml:"ReadingType"`
		LocalTime    *espiLocalTime   `xml:"LocalTimeParameters"`
		Blocks       []struct {
			// If a block has several readings, the decoder stores the duration of the last
			// one.
			Duration int64 `xml:"IntervalReading>timePeriod>duration"`
		} `xml:"IntervalBlock"`
	} `xml:"content"`
}

// links returns the targets of the entry's links with the given rel attribute.
func (e *espiEntry) links(rel string) (hrefs []string) {
	for _, l := range e.Links {
		if href := strings.TrimRight(strings.TrimSpace(l.Href), "/"); l.Rel == rel && href != "" {
			hrefs = append(hrefs, href)
		}
	}
	return hrefs
}

type espiLocalTime struct {
	Offset int `xml:"tzOffset"` // seconds, without daylight saving
	Saving int `xml:"dstOffset"`
}

func (l espiLocalTime) String() string {
	if l.Saving == 0 {
		return offsetName(l.Offset) + " without daylight saving"
	}
	return fmt.Sprintf("%s, with daylight saving of %s in summer", offsetName(l.Offset), time.Duration(l.Saving)*time.Second)
}

// espiReadingType describes the readings of a meter: commodity, unit, direction. The
// values are codes from the ESPI schema.
type espiReadingType struct {
	Accumulation int `xml:"accumulationBehaviour"`
	Commodity    int `xml:"commodity"`
	Qualifier    int `xml:"dataQualifier"`
	Flow         int `xml:"flowDirection"`
	Length       int `xml:"intervalLength"` // seconds
	PowerOfTen   int `xml:"powerOfTenMultiplier"`
	Unit         int `xml:"uom"`
}

// The ESPI codes of the supported reading types and of common unsupported reading types.
const (
	espiWatt     = 38
	espiWattHour = 72

	espiForward = 1
	espiNet     = 4
	espiReverse = 19

	espiDelta         = 4
	espiIndicating    = 6
	espiInstantaneous = 12

	espiAverage = 2
	espiNormal  = 12
)

// rank returns how suitable readings of this type are as load, where 0 is best, or the reason
// why they cannot be used.
func (t *espiReadingType) rank() (rank int, reason string) {
	if !slices.Contains([]int{0, 1, 2}, t.Commodity) {
		return 0, fmt.Sprintf("not electricity (commodity %d)", t.Commodity)
	}
	switch t.Unit {
	case espiWattHour:
		// If accumulationBehaviour is absent, the value is the energy of the interval.
		if t.Accumulation != espiDelta && t.Accumulation != 0 {
			return 0, fmt.Sprintf("a meter register, not energy per interval (accumulationBehaviour %d)", t.Accumulation)
		}
	case espiWatt:
		if !slices.Contains([]int{0, espiDelta, espiIndicating, espiInstantaneous}, t.Accumulation) || !slices.Contains([]int{0, espiAverage, espiNormal}, t.Qualifier) {
			return 0, fmt.Sprintf("not mean power (accumulationBehaviour %d, dataQualifier %d)", t.Accumulation, t.Qualifier)
		}
		rank = 2
	default:
		return 0, fmt.Sprintf("neither Wh nor W (uom %d)", t.Unit)
	}
	switch t.Flow {
	case 0, espiForward:
	case espiNet:
		rank++
	case espiReverse:
		return 0, "energy exported to the grid (flowDirection 19)"
	default:
		return 0, fmt.Sprintf("unsupported flowDirection %d", t.Flow)
	}
	if t.PowerOfTen < -12 || t.PowerOfTen > 12 {
		return 0, fmt.Sprintf("unsupported powerOfTenMultiplier %d", t.PowerOfTen)
	}
	return rank, ""
}

// kilowatts returns the factor that converts a value of this type to mean power in kW.
func (t *espiReadingType) kilowatts(interval time.Duration) float64 {
	scale := math.Pow10(t.PowerOfTen - 3)
	if t.Unit == espiWattHour {
		scale /= interval.Hours()
	}
	return scale
}

type espiPeriod struct {
	Duration *int64 `xml:"duration"`
	Start    *int64 `xml:"start"`
}

type espiIntervalReading struct {
	Period    espiPeriod `xml:"timePeriod"`
	Value     string     `xml:"value"`
	Qualities []int      `xml:"ReadingQuality>quality"`
}
