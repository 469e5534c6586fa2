package recipe

import (
	"time"

	"loadstar/series"
	"loadstar/series/feature"
)

// Scaling contains the properties of a client's training split by which its examples are
// scaled. It is stored with the client's weights, because weights are useless with a different
// scaling.
type Scaling struct {
	// Ranges scale windows. Ranges is nil if an example is a row of features.
	Ranges series.Ranges
	// Features scales rows of features. It is nil if an example is a window.
	Features *feature.Scaling
}

// Scaling returns the scaling of a meter's training split. Ranges belong to the meter or to the
// fleet, depending on the plan. Rows of features do not need ranges.
func (q *Problem) Scaling(m series.Meter, r series.Ranges) Scaling {
	if q.rows != nil {
		return q.ScalingOf(q.rows.Rows(m), nil)
	}
	return q.ScalingOf(nil, r)
}

// ScalingOf returns the scaling of examples that the problem built with the given ranges.
func (q *Problem) ScalingOf(data series.Examples, r series.Ranges) Scaling {
	if rows, ok := data.(*feature.Rows); ok {
		return Scaling{Features: rows.Scaling()}
	}
	return Scaling{Ranges: r}
}

// ScalingOver computes the scaling for rows of features from a meter's steps in [from, to).
func (q *Problem) ScalingOver(m series.Meter, from, to int) Scaling {
	return Scaling{Features: q.rows.ScalingOver(m, from, to)}
}

// Frozen returns the examples of a meter with a scaling that was computed earlier.
func (q *Problem) Frozen(m series.Meter, s Scaling) series.Examples {
	if q.rows != nil {
		return q.rows.Frozen(m, s.Features)
	}
	return q.Framer.Windows(m, s.Ranges)
}

// Tail returns the start, in Unix seconds, of the shortest tail of a series from which a client
// can forecast at a cutoff. Forecasts are bit-identical for all tails that start there or a
// whole number of weeks earlier, as [feature.Tail] explains.
func (q *Problem) Tail(cutoff int64, interval time.Duration) int64 {
	if q.interval == 0 {
		days := 0
		for _, in := range q.Inputs {
			days = max(days, in.Days)
		}
		// When clocks change, the oldest load in a window may be an hour older.
		reach := time.Duration(q.layout.Lookback)*interval + time.Duration(days+1)*24*time.Hour
		cutoff = min(cutoff, cutoff-int64(reach/time.Second)+feature.TailSeconds)
	}
	return feature.Tail(cutoff, int64(interval/time.Second))
}

// Newest returns the examples of a meter with a scaling that was computed earlier, for
// forecasts with origins at or after the step since. The result may contain no training
// examples.
func (q *Problem) Newest(m series.Meter, s Scaling, since int) series.Examples {
	if q.rows != nil {
		return q.rows.Newest(m, s.Features, since)
	}
	return q.Framer.Windows(m, s.Ranges)
}
