package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/rig/product"
)

// rotations lists the attacks on keys that cannot be replaced.
func rotations() []Attack {
	return []Attack{{ID: "H7b", Name: "a stolen key of the authority cannot be replaced while the fleet runs", Run: oneKeyForEver}}
}

// oneKeyForEver succeeds if the root of a running server cannot be replaced, or if an agent
// that joined before the replacement cannot continue after renewing its certificate.
func oneKeyForEver(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.JoinOne(ctx, "before"))
	must(a.Host(ctx, nil, "meter-1"))
	root := must(firstCertificate(filepath.Join(s.Dir, "operator", "ca.pem")))
	if _, err := run(ctx, f.bin, nil, "pki", "rotate", "--root", "--dir", s.Dir); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return succeeded("%s", first), nil
	}
	// The server detects the new issuer by itself. Until then, agents get certificates of
	// the previous one.
	var last error
	ok := must(product.Eventually(ctx, 40*time.Second, func() (bool, error) {
		if err := product.Sleep(ctx, 2*time.Second); err != nil { // an agent may renew 20 times a minute
			return false, err
		}
		var next *Agent
		if next, last = s.renew(ctx, a); last != nil {
			return false, nil
		}
		if _, last = next.checkIn(ctx, &v1.ExchangeRequest{}); last != nil {
			return false, nil
		}
		same := next.Leaf.AuthorityKeyId != nil && string(next.Leaf.AuthorityKeyId) == string(a.Leaf.AuthorityKeyId)
		a = next
		return !same, ctx.Err()
	}))
	if !ok {
		return succeeded("no certificate of a new issuer: %v", last), nil
	}
	if _, err := s.JoinOne(ctx, "after"); err != nil {
		return Result{}, fmt.Errorf("after the rotation: %w", err)
	}
	now, err := firstCertificate(filepath.Join(s.Dir, "operator", "ca.pem"))
	return repelled("an agent of root %.8x goes on with a new issuer; the operators' first root is %.8x", root.SerialNumber, now.SerialNumber), err
}
