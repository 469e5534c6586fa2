package main

import (
	"errors"
	"testing"
)

func TestDeclinedBy(t *testing.T) {
	err := errors.New("client.batch is 1, the minimum is 32 (policy.least_batch); it is so (policy.optimizers); again (policy.least_batch)")
	if got := declinedBy(err); got != "least_batch, optimizers" {
		t.Errorf("declined by %q", got)
	}
	if got := declinedBy(errors.New("the readings cannot be read")); got != "" {
		t.Errorf("declined by %q", got)
	}
}
