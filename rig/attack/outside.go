package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"loadstar/internal/testkit/pgtest"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
)

// outsiders lists attacks on the stores that a server uses, and attacks that start from these
// stores. They set up the stores as docs/how-to/stores.md describes.
func outsiders() []Attack {
	return []Attack{
		{ID: "X5", Name: "another role of the same PostgreSQL reaches the ledger, or the server's role other databases", Run: databaseRights},
		{ID: "X6", Name: "weights that were swapped in the S3 store reach an agent", Run: swapBlob},
	}
}

// documented returns a code block of docs/how-to/stores.md that contains a word.
func documented(word string) (string, error) {
	page, err := os.ReadFile("../docs/how-to/stores.md") // make attacks runs in rig
	if err != nil {
		return "", err
	}
	for _, m := range regexp.MustCompile("(?s)```\\w+\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(m[1], word) {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("stores.md has no code block with %s", word)
}

// databaseRights succeeds if the role of another program in the same PostgreSQL can read, change or
// block the ledger. It also succeeds if the server's role can do that to the program's database, or
// can read files or start programs on the database's machine. The ledger is created as stores.md
// describes.
func databaseRights(ctx context.Context, f *Fleet) (Result, error) {
	statements := must(documented("CREATE ROLE"))
	check(os.Mkdir(f.path("pg"), 0o755))
	database := must(pgtest.Start(f.path("pg"), 0))
	f.later(database.Stop)
	as := func(role, name string) string { return strings.Replace(database.URL(name), "postgres@", role+"@", 1) }
	statements += "\nCREATE ROLE neighbour LOGIN;\nCREATE DATABASE neighbour OWNER neighbour;\nREVOKE CONNECT ON DATABASE neighbour FROM PUBLIC;"
	if problem, err := try(ctx, as("postgres", "postgres"), strings.Split(statements, ";")...); err != nil || problem != nil {
		return Result{}, errors.Join(problem, err)
	}
	s := must(f.Serve(ctx, "--database", as("loadstar", "loadstar")))
	must(s.JoinOne(ctx, "agent"))
	for _, x := range []struct{ role, database, statement string }{
		{"neighbour", "loadstar", "SELECT * FROM agents"},
		{"neighbour", "loadstar", "DELETE FROM agents"},
		{"neighbour", "loadstar", "SELECT pg_advisory_lock(1)"},
		{"neighbour", "loadstar", "CREATE TABLE mine (x int)"},
		{"loadstar", "neighbour", "SELECT 1"},
		{"loadstar", "loadstar", "COPY (SELECT 1) TO PROGRAM 'true'"},
		{"loadstar", "loadstar", "SELECT pg_read_file('/etc/hostname')"},
		{"loadstar", "loadstar", "SELECT * FROM pg_authid"},
		{"loadstar", "loadstar", "CREATE ROLE mine SUPERUSER"},
		{"loadstar", "loadstar", "ALTER ROLE neighbour PASSWORD 'x'"},
	} {
		problem := must(try(ctx, as(x.role, x.database), x.statement))
		if problem == nil {
			return succeeded("%s: %s", x.role, x.statement), nil
		}
	}
	return repelled("10 statements of both roles are refused, and the server works"), nil
}

// try executes statements. If the database refuses the connection or a statement, try returns
// the reason.
func try(ctx context.Context, url string, statements ...string) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		defer func() { _ = conn.Close(ctx) }() // only the executed statements matter
		for _, s := range statements {
			if strings.TrimSpace(s) == "" {
				continue
			}
			if _, err = conn.Exec(ctx, s); err != nil {
				break
			}
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return err, nil
}

// swapBlob succeeds if an agent gets weights other than the run's after they were swapped in
// the S3 store, or if the run ends with those weights.
func swapBlob(ctx context.Context, f *Fleet) (Result, error) {
	const bucket = "weights"
	memory := s3mem.New()
	check(memory.CreateBucket(bucket))
	store := httptest.NewServer(gofakes3.New(memory).Server())
	f.later(func() error { store.Close(); return nil })
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if err := os.Setenv(name, "attack"); err != nil { // the server inherits our environment
			return Result{}, err
		}
	}
	s := must(f.Serve(ctx, "--blobs", strings.Replace(store.URL, "http://", "s3+http://", 1)+"/"+bucket))
	run, holder, end, err := s.hold(ctx)
	check(err)
	defer func() { _ = end() }() // the holder's calls may fail when the server ends
	var r *v1.GetRunResponse
	if ok, err := product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		r, err = s.look(ctx, run)
		return err == nil && r.Run.Weights != "", err
	}); err != nil || !ok {
		return Result{}, fmt.Errorf("the run does not start: %w", err)
	}
	before := must(holder.weights(ctx, r.Run.Weights))
	o := must(memory.HeadObject(bucket, r.Run.Weights))
	other := bytes.Repeat([]byte{0x3f}, int(o.Size))
	must(memory.PutObject(bucket, r.Run.Weights, map[string]string{}, io.NopCloser(bytes.NewReader(other)), o.Size, nil))
	// The server may have cached the weights, so start another server with the same ledger.
	check(s.Kill())
	again, err := f.Serve(ctx, "--listen", s.Host, "--blobs", strings.Replace(store.URL, "http://", "s3+http://", 1)+"/"+bucket)
	if err != nil {
		return repelled("the server does not start with other weights: %v", err), nil
	}
	again.Host = s.Host
	holder.HTTP.CloseIdleConnections()
	after, err := holder.weights(ctx, r.Run.Weights)
	if err == nil && len(after) == len(before) && after[0] != before[0] {
		return succeeded("the agent gets weights that somebody has put into the store"), nil
	}
	if err == nil {
		return Result{}, errors.New("the weights did not change, so the swap did not work")
	}
	why := line(again.Log(), "is corrupt")
	if why == "" {
		return Result{}, fmt.Errorf("the weights are refused for another reason: %w", err)
	}
	return repelled("the server does not send swapped weights, and logs it: %v", err), nil
}
