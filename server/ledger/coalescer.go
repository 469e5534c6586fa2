package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// coalescer puts questions that many ask at the same time to the database as one: what
// it takes to ask is most of what an answer takes. Those that come while others are
// asked wait for these, and then go together.
type coalescer[Q, A any] struct {
	ledger *Ledger
	// ask answers questions in their order, all or none.
	ask       func(context.Context, []Q) ([]A, error)
	questions chan *question[Q, A]
}

// question is one of somebody who waits for done.
type question[Q, A any] struct {
	Q      Q
	answer A
	err    error
	done   chan struct{}
}

const (
	// askedAtOnce bounds what goes together, abreast how often at a time.
	askedAtOnce = 32
	abreast     = 2
	// answerWithin is how long PostgreSQL may take for an answer: others wait behind it.
	answerWithin = 10 * time.Second
)

var errClosed = errors.New("ledger: it is closed")

// start begins to answer, until the ledger is closed.
func (t *coalescer[Q, A]) start(l *Ledger, ask func(context.Context, []Q) ([]A, error)) {
	t.ledger, t.ask, t.questions = l, ask, make(chan *question[Q, A], askedAtOnce)
	for range abreast {
		// They stay: the stack that SQLite takes is long, and a new one would have to
		// grow each time.
		l.answering.Go(func() {
			for {
				select {
				case first := <-t.questions:
					t.put(first)
				case <-l.open.Done():
					return
				}
			}
		})
	}
}

// of returns the answer to a question.
func (t *coalescer[Q, A]) of(ctx context.Context, q Q) (answer A, err error) {
	x := &question[Q, A]{Q: q, done: make(chan struct{})}
	select {
	case t.questions <- x:
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.ledger.open.Done():
		return answer, errClosed
	}
	select {
	case <-x.done:
		return x.answer, x.err
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.ledger.open.Done():
		return answer, errClosed
	}
}

// put asks what waits.
func (t *coalescer[Q, A]) put(first *question[Q, A]) {
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
	// It is of many, so nobody's context is its own. SQLite is not far away, and its
	// driver starts a goroutine for every question that can be given up.
	ctx := context.Background()
	if !t.ledger.lite {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(t.ledger.open, answerWithin)
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

// safely asks. A mistake of ours fails the calls that met it, as it would have in their
// own goroutines.
func (t *coalescer[Q, A]) safely(ctx context.Context, questions []Q) (answers []A, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ledger: asking has failed, which is a bug: %v\n%s", p, debug.Stack())
		}
	}()
	return t.ask(ctx, questions)
}

// among puts a question about each of these, a statement's worth at a time. They stand
// behind the text, which ends with IN and has places for what is taken.
func among[T any](ctx context.Context, l *Ledger, each func(*sql.Rows) error, text string, taken []any, these []T) error {
	for part := range slices.Chunk(these, l.chunk) {
		args := make([]any, 0, len(taken)+2*len(part))
		args = append(args, taken...)
		for _, x := range part {
			args = append(args, x)
		}
		// Only powers of two, so that few statements are prepared.
		n := len(part)
		for ; n&(n-1) != 0; n++ {
			args = append(args, part[0])
		}
		if err := query(ctx, l.read, each, text+list(len(taken), n), args...); err != nil {
			return err
		}
	}
	return nil
}
