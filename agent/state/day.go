package state

import (
	"time"

	bolt "go.etcd.io/bbolt"
)

// roundsKey is the key of the dayRecord in the bucket meta.
var roundsKey = []byte("rounds")

// dayRecord counts the rounds of a day.
type dayRecord struct {
	Day   int64 `json:"day"` // since 1970, UTC
	Count int   `json:"count"`
	// Run and Round are the round that was counted last, so that its further jobs and
	// repetitions are not counted.
	Run   string `json:"run"`
	Round int64  `json:"round"`
}

// CountRound counts a round that is about to be trained, unless it is the one that was
// counted last. It returns the number of rounds of the day with this one. If there would be
// more than most, it stores nothing.
func (s *Store) CountRound(run string, round int64, most int, now time.Time) (n int, err error) {
	day := now.UTC().Unix() / (24 * 60 * 60)
	err = s.update("count round", func(tx *bolt.Tx) error {
		var r dayRecord
		if _, err := getRecord(tx.Bucket(metaBucket), roundsKey, &r); err != nil {
			return err
		}
		switch {
		case r.Day != day:
			r = dayRecord{Day: day}
		case r.Run == run && r.Round == round:
			n = r.Count
			return nil
		}
		r.Count, r.Run, r.Round = r.Count+1, run, round
		if n = r.Count; n > most {
			return nil
		}
		return putRecord(tx.Bucket(metaBucket), roundsKey, r)
	})
	return n, err
}
