package sqlstore

import (
	"database/sql"
	"errors"
	"fmt"
)

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("not found")
	ErrRefused  = errors.New("refused")
	ErrTooMany  = errors.New("too many")
)

// failure is an error with the operation that failed.
type failure struct {
	doing string
	err   error
}

func (f *failure) Error() string { return "ledger: " + f.doing + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Wrap adds the failed operation to an error that an exported method returns. It does not
// change errors that another exported method has already wrapped, or ErrNotFound, ErrRefused
// and ErrTooMany, whose messages are shown to agents and operators.
//
// The names have type string instead of any, so that a deferred call allocates nothing on
// success.
func Wrap(err *error, doing string, names ...string) {
	if *err == nil || errors.As(*err, new(*failure)) ||
		errors.Is(*err, ErrNotFound) || errors.Is(*err, ErrRefused) || errors.Is(*err, ErrTooMany) {
		return
	}
	for _, name := range names {
		doing += " " + name
	}
	*err = &failure{doing, asUnwritable(asDamage(*err))}
}

// OrNotFound replaces sql.ErrNoRows with ErrNotFound.
func OrNotFound(err error, what string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%s: %w", what, ErrNotFound)
	}
	return err
}
