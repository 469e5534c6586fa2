package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// Coalescer combines concurrent queries into one, because the round trip to the database
// dominates the cost of a query. Queries that arrive while a batch is running wait and form
// the next batch.
type Coalescer[Q, A any] struct {
	store *Store
	// ask answers a batch of questions, in the order of the questions. An error applies to the
	// whole batch.
	ask       func(context.Context, []Q) ([]A, error)
	questions chan *question[Q, A]
}

// question is one caller's query. When done is closed, answer or err is set.
type question[Q, A any] struct {
	Q      Q
	answer A
	err    error
	done   chan struct{}
}

const (
	// askedAtOnce is the maximum number of questions in a batch. batchesAtOnce is the maximum
	// number of concurrent batches.
	askedAtOnce   = 32
	batchesAtOnce = 2
	// answerWithin is the timeout of a batch in PostgreSQL. It is necessary because other
	// batches wait for a slow one.
	answerWithin = 10 * time.Second
)

var errClosed = errors.New("the ledger is closed")

// Start starts the goroutines that answer questions until the store is closed.
func (t *Coalescer[Q, A]) Start(s *Store, ask func(context.Context, []Q) ([]A, error)) {
	t.store, t.ask, t.questions = s, ask, make(chan *question[Q, A], askedAtOnce)
	for range batchesAtOnce {
		// Keep these goroutines running, because SQLite needs a deep stack, which a new
		// goroutine would have to grow for every batch.
		s.answering.Go(func() {
			for {
				select {
				case first := <-t.questions:
					t.answer(first)
				case <-s.open.Done():
					return
				}
			}
		})
	}
}

// Get adds a question to the next batch and returns the answer.
func (t *Coalescer[Q, A]) Get(ctx context.Context, q Q) (answer A, err error) {
	if t.store.DB.simulated() {
		if err := t.store.DB.pass(ctx, Read, fmt.Sprintf("%T %v", q, q)); err != nil {
			return answer, err
		}
	}
	x := &question[Q, A]{Q: q, done: make(chan struct{})}
	select {
	case t.questions <- x:
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.store.open.Done():
		return answer, errClosed
	}
	select {
	case <-x.done:
		return x.answer, x.err
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.store.open.Done():
		return answer, errClosed
	}
}

// Alone answers a question separately, so that no other question waits for it.
func (t *Coalescer[Q, A]) Alone(ctx context.Context, q Q) (answer A, err error) {
	all, err := t.ask(ctx, []Q{q})
	if err != nil {
		return answer, err
	}
	return all[0], nil
}

// answer runs the first question and the waiting questions as one batch.
func (t *Coalescer[Q, A]) answer(first *question[Q, A]) {
	asked := []*question[Q, A]{first}
	for more := true; more && len(asked) < askedAtOnce; {
		select {
		case x := <-t.questions:
			asked = append(asked, x)
		default:
			more = false
		}
	}
	questions := make([]Q, len(asked))
	for i, x := range asked {
		questions[i] = x.Q
	}
	// The batch serves many callers, so it must not use one caller's context. SQLite gets a
	// context that cannot be cancelled, because it answers quickly and its driver starts a
	// goroutine for every query that can be cancelled.
	ctx := context.Background()
	if !t.store.SQLite {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(t.store.open, answerWithin)
		defer cancel()
	}
	answers, err := t.safely(ctx, questions)
	for i, x := range asked {
		if x.err = err; err == nil {
			x.answer = answers[i]
		}
		close(x.done)
	}
}

// safely calls ask and turns a panic into an error for the callers of this batch.
func (t *Coalescer[Q, A]) safely(ctx context.Context, questions []Q) (answers []A, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the query panicked, which is a bug: %v\n%s", p, debug.Stack())
		}
	}()
	return t.ask(ctx, questions)
}

// QueryIn runs a query that ends with IN for a list of values of any length, with l.chunk
// values per statement. The arguments in first come before the values.
func QueryIn[T any](ctx context.Context, s *Store, each func(*sql.Rows) error, text string, first []any, values []T) error {
	for part := range slices.Chunk(values, s.Chunk) {
		args := make([]any, 0, len(first)+2*len(part))
		args = append(args, first...)
		for _, x := range part {
			args = append(args, x)
		}
		// Repeat the first value until the length is a power of two, so that only a few different
		// statements are prepared.
		n := len(part)
		for ; n&(n-1) != 0; n++ {
			args = append(args, part[0])
		}
		if err := Query(ctx, s.Ungated, each, text+InList(len(first), n), args...); err != nil {
			return err
		}
	}
	return nil
}
