package state

import (
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// tasksKept is the number of stored tasks per run, and of counted rounds per client. From the
// tasks and the secret, the client's updates can be computed again.
const tasksKept = 10

// taskRecord is a task for which clients of the agent trained.
type taskRecord struct {
	Round int64  `json:"round"`
	Task  []byte `json:"task"`
}

// newest removes the oldest records if there are too many.
func newest[T any](all []T) []T { return all[max(len(all)-tasksKept, 0):] }

// Remember stores a task of a run, unless it is already stored. The run must have begun.
func (s *Store) Remember(run string, round int64, task []byte) error {
	var r runRecord
	known := false
	look := func(tx *bolt.Tx) error {
		r = runRecord{}
		_, err := boltfile.Get(tx.Bucket(runsBucket), []byte(run), &r)
		known = slices.ContainsFunc(r.Tasks, func(t taskRecord) bool { return t.Round == round && string(t.Task) == string(task) })
		return err
	}
	if err := s.view(look); err != nil || known {
		return err
	}
	return s.update("remember", func(tx *bolt.Tx) error {
		if err := look(tx); err != nil {
			return err
		}
		r.Tasks = slices.DeleteFunc(r.Tasks, func(t taskRecord) bool { return t.Round == round })
		r.Tasks = newest(append(r.Tasks, taskRecord{round, task}))
		return boltfile.Put(tx.Bucket(runsBucket), []byte(run), &r)
	})
}

// Tasks returns the stored tasks of a client's counted results and of its undecided result,
// newest first. All belong to the run for which the client last trained. Pending reports
// whether the first task's result is undecided.
func (s *Store) Tasks(client string) (run string, tasks [][]byte, pending bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		live, _, err := listRuns(tx)
		if err != nil {
			return err
		}
		for _, x := range slices.Backward(live) {
			run = x.name
			if tasks, pending, err = s.tasksOf(tx, run, client); err != nil || len(tasks) > 0 {
				return err
			}
		}
		return nil
	})
	return run, tasks, pending, err
}

func (s *Store) tasksOf(tx *bolt.Tx, run, client string) (tasks [][]byte, pending bool, err error) {
	key := keptKey(run, client)
	var kept keptRecord
	var result resultRecord
	var r runRecord
	if _, err := boltfile.Get(tx.Bucket(keptBucket), []byte(key), &kept); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	id, undecided := s.undecided[key]
	s.mu.Unlock()
	if undecided {
		if undecided, err = boltfile.Get(tx.Bucket(resultsBucket), idKey(id), &result); err != nil {
			return nil, false, err
		}
	}
	if _, err := boltfile.Get(tx.Bucket(runsBucket), []byte(run), &r); err != nil {
		return nil, false, err
	}
	for _, t := range slices.Backward(r.Tasks) {
		switch {
		case undecided && t.Round == result.Round:
			tasks, pending = append(tasks, t.Task), len(tasks) == 0
		case slices.Contains(kept.Rounds, t.Round):
			tasks = append(tasks, t.Task)
		}
	}
	return tasks, pending, nil
}
