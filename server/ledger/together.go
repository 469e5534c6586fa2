package ledger

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// together puts questions that many ask at the same time to the database as one: what
// it takes to ask is most of what an answer takes. Those that come while others are
// asked wait for these, and then go together.
type together[Q, A any] struct {
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
	// answerWithin is how long PostgreSQL may take for an answer.
	answerWithin = 30 * time.Second
)

var errClosed = errors.New("ledger: it is closed")

// start begins to answer, until the ledger is closed.
func (t *together[Q, A]) start(l *Ledger, ask func(context.Context, []Q) ([]A, error)) {
	t.ledger, t.ask, t.questions = l, ask, make(chan *question[Q, A], askedAtOnce)
	for range abreast {
		// They stay: the stack that SQLite takes is long, and a new one would have to
		// grow each time.
		l.answering.Go(func() {
			for {
				select {
				case first := <-t.questions:
					t.put(first)
				case <-l.closed:
					return
				}
			}
		})
	}
}

// of returns the answer to a question.
func (t *together[Q, A]) of(ctx context.Context, q Q) (answer A, err error) {
	x := &question[Q, A]{Q: q, done: make(chan struct{})}
	select {
	case t.questions <- x:
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.ledger.closed:
		return answer, errClosed
	}
	select {
	case <-x.done:
		return x.answer, x.err
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-t.ledger.closed:
		return answer, errClosed
	}
}

// put asks what waits.
func (t *together[Q, A]) put(first *question[Q, A]) {
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
		ctx, cancel = context.WithTimeout(ctx, answerWithin)
		defer cancel()
	}
	answers, err := t.ask(ctx, questions)
	for i, x := range asked {
		if x.err = err; err == nil {
			x.answer = answers[i]
		}
		close(x.done)
	}
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
