package state

import (
	"errors"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// roundsKey is the key of the dayRecord in the bucket meta.
var roundsKey = []byte("rounds")

// dayRecord counts the rounds of a day.
type dayRecord struct {
	Day   int64 `json:"day"` // since 1970, UTC
	Count int   `json:"count"`
	// Tasks identifies the tasks that were counted last, so that their further jobs and
	// repetitions are not counted.
	Tasks []string `json:"tasks,omitempty"`
}

// recentTasks is the maximum number of tasks in a dayRecord.
const recentTasks = 32

// CountRound counts a task that is about to be trained, unless it was counted lately. It
// returns the number of tasks of the day with this one. If there would be more than most, it
// stores nothing. The identifier of a task must depend on everything that training depends
// on: a server could otherwise repeat a round with other weights.
func (s *Store) CountRound(task string, most int, now time.Time) (n int, err error) {
	day := now.UTC().Unix() / (24 * 60 * 60)
	err = s.update("count round", func(tx *bolt.Tx) error {
		var r dayRecord
		if _, err := getRecord(tx.Bucket(metaBucket), roundsKey, &r); errors.Is(err, ErrDamaged) {
			r = dayRecord{Day: day, Count: most} // unknown: train again tomorrow
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
		return putRecord(tx.Bucket(metaBucket), roundsKey, r)
	})
	return n, err
}
