package read

import (
	"errors"
	"maps"
	"slices"
	"time"

	"loadstar/series/table"
)

// commonStep reads the beginning of a table. It returns the most frequent time between two
// consecutive rows of the same meter, and the time of the first row. If meterColumn is -1,
// all rows belong to one meter.
func commonStep(t table.Table, timeColumn, meterColumn int, clock *time.Location) (step time.Duration, first int64, err error) {
	const enough = 20000
	var (
		r     = table.NewClock(clock, 0, table.Dates{})
		last  = map[string]int64{}
		count = map[int64]int{}
		rows  = 0
	)
	columns := []int{timeColumn}
	if meterColumn >= 0 {
		columns = append(columns, meterColumn)
	}
	err = t.Each(columns, func(cells []table.Cell) error {
		at, err := r.Instant(&cells[0])
		if errors.Is(err, table.ErrNonexistent) {
			return nil
		}
		if err != nil {
			return err
		}
		id := ""
		if len(cells) > 1 {
			id = string(cells[1].Name())
		}
		if before, ok := last[id]; ok && at.Again == 0 {
			if d := at.Unix - before; d != 0 {
				count[max(d, -d)]++
			}
		}
		if rows == 0 {
			first = at.Unix
		}
		last[id] = at.Unix
		if rows++; rows == enough {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return 0, 0, err
	}
	var best int64
	for _, d := range slices.Sorted(maps.Keys(count)) {
		if count[d] > count[best] {
			best = d
		}
	}
	if best == 0 {
		return 0, 0, errNoStep
	}
	return time.Duration(best) * time.Second, first, nil
}
