package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// plansKey is the key of the planRecord in the bucket meta.
var plansKey = []byte("plans")

// planRecord contains the plans that were trained recently, and the last day of each since
// 1970, UTC.
type planRecord struct {
	Days map[string]int64 `json:"days"`
}

// CountPlan records that a plan is trained. It returns the number of different plans in seven
// days, including this one. It does not record a plan if the number would exceed most. It
// writes once a day for each plan, although every round calls it.
func (s *Store) CountPlan(plan string, most int, now time.Time) (n int, err error) {
	day := now.UTC().Unix() / (24 * 60 * 60)
	noted := false
	err = s.view(func(tx *bolt.Tx) error {
		r, damaged, err := recentPlans(tx, most, day)
		n, noted = len(r.Days), r.Days[plan] == day && !damaged
		return err
	})
	if noted || err != nil {
		return n, err
	}
	err = s.update("count plan", func(tx *bolt.Tx) error {
		r, damaged, err := recentPlans(tx, most, day)
		if err != nil {
			return err
		}
		r.Days[plan] = day
		if n = len(r.Days); n > most {
			delete(r.Days, plan)
			if !damaged {
				return nil
			}
		}
		return boltfile.Put(tx.Bucket(metaBucket), plansKey, r)
	})
	return n, err
}

// recentPlans returns the plans of the last seven days. If the record is damaged, it returns as
// many unknown plans as the record can hold. Once they are stored, the agent trains no new plan
// for a week.
func recentPlans(tx *bolt.Tx, most int, day int64) (r planRecord, damaged bool, err error) {
	const week = 7
	_, err = boltfile.Get(tx.Bucket(metaBucket), plansKey, &r)
	if damaged = errors.Is(err, ErrDamaged); err != nil && !damaged {
		return r, false, err
	}
	if damaged || r.Days == nil {
		r.Days = map[string]int64{}
	}
	if damaged {
		for i := range most {
			r.Days[fmt.Sprint("unknown ", i)] = day
		}
	}
	maps.DeleteFunc(r.Days, func(_ string, last int64) bool { return day-last >= week })
	return r, damaged, nil
}

// roundsKey is the key of the dayRecord in the bucket meta.
var roundsKey = []byte("rounds")

// dayRecord counts the rounds of a day.
type dayRecord struct {
	Day   int64 `json:"day"` // since 1970, UTC
	Count int   `json:"count"`
	// Tasks identifies the tasks that were counted last, so that the tasks' further jobs and
	// repetitions are not counted.
	Tasks []string `json:"tasks,omitempty"`
}

// recentTasks is the maximum number of tasks in a dayRecord.
const recentTasks = 32

// CountRound counts a task that is about to be trained, unless it was counted recently. It
// returns the day's number of tasks, including this one. If this number exceeds most, it
// stores nothing. A task's identifier must depend on everything that training depends on.
// Otherwise a server could repeat a round with other weights.
func (s *Store) CountRound(task string, most int, now time.Time) (n int, err error) {
	day := now.UTC().Unix() / (24 * 60 * 60)
	err = s.update("count round", func(tx *bolt.Tx) error {
		var r dayRecord
		if _, err := boltfile.Get(tx.Bucket(metaBucket), roundsKey, &r); errors.Is(err, ErrDamaged) {
			// The count is unknown, so do not train until tomorrow. Store this decision;
			// otherwise the count would still be unknown tomorrow.
			n = most + 1
			return boltfile.Put(tx.Bucket(metaBucket), roundsKey, dayRecord{Day: day, Count: most})
		} else if err != nil {
			return err
		}
		switch {
		case r.Day != day:
			r = dayRecord{Day: day}
		case slices.Contains(r.Tasks, task):
			n = r.Count
			return nil
		}
		r.Count, r.Tasks = r.Count+1, append(r.Tasks, task)
		r.Tasks = r.Tasks[max(0, len(r.Tasks)-recentTasks):]
		if n = r.Count; n > most {
			return nil
		}
		return boltfile.Put(tx.Bucket(metaBucket), roundsKey, r)
	})
	return n, err
}
