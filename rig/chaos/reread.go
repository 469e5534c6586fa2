package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"loadstar/agent/identity"
	"loadstar/agent/state"
	"loadstar/internal/mtls"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server"
	"loadstar/server/blob"
	serverledger "loadstar/server/ledger"
	"loadstar/server/pki"
	"loadstar/server/sqlstore"
)

// dump adds all rows of a database's tables, by table.
func dump(ctx context.Context, db *sql.DB, tables []string, into map[string]string) error {
	for _, table := range tables {
		rows, err := db.QueryContext(ctx, "SELECT * FROM "+table)
		if err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		h := sha256.New()
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			if err := rows.Scan(values...); err != nil {
				return err
			}
			for _, v := range values {
				fmt.Fprintf(h, "%v|", *v.(*any))
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
		into[table] = fmt.Sprintf("%x", h.Sum(nil))
	}
	return nil
}

func names(ctx context.Context, db *sql.DB, text string) (all []string, err error) {
	rows, err := db.QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		all = append(all, name)
	}
	return all, rows.Err()
}

// readLedger opens a ledger as a server does, reads all of its tables, and verifies it like
// a backup.
func readLedger(ctx context.Context, dir string) (map[string]string, error) {
	path := filepath.Join(dir, "ledger.db")
	l, err := serverledger.Open(ctx, "sqlite:"+path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the copy is discarded
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=ro")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	tables, err := names(ctx, db, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
	if err != nil {
		return nil, err
	}
	all := map[string]string{"tables": strings.Join(tables, " ")}
	if err := dump(ctx, db, tables, all); err != nil {
		return nil, err
	}
	copied := filepath.Join(dir, "backup.db")
	if err := l.Store.Backup(ctx, copied); err != nil {
		return nil, err
	}
	return all, sqlstore.VerifyFile(ctx, copied)
}

func readBlobs(ctx context.Context, dir string) (map[string]string, error) {
	store, err := blob.Files(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !blob.IsHash(d.Name()) {
			return err
		}
		data, err := store.Get(ctx, d.Name())
		all[d.Name()] = string(data)
		return err
	})
	return all, err
}

func readAuthority(_ context.Context, dir string) (map[string]string, error) {
	a, err := pki.OpenExisting(dir, pki.Keys{})
	if err != nil {
		return nil, err
	}
	infos, err := pki.Issuers(dir)
	if err != nil {
		return nil, err
	}
	if _, err := a.TLS([]string{"localhost"}); err != nil { // signs with the issuer's key
		return nil, err
	}
	if a.RootKeyHere() != "" {
		if err := pki.Rotate(dir, pki.Keys{}, pki.Rotation{}); err != nil { // signs with the root's key
			return nil, err
		}
	}
	return map[string]string{"roots": fmt.Sprintf("%x", a.Roots()), "issuers": fmt.Sprint(infos)}, nil
}

// readOperator reads an operator's credentials, and checks the certificate as the server
// does in the handshake.
func readOperator(authority string) func(context.Context, string) (map[string]string, error) {
	return func(_ context.Context, dir string) (map[string]string, error) {
		c, err := mtls.ReadFolder(dir)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(authority, "issuer.pem"))
		if err != nil {
			return nil, err
		}
		issuer, err := mtls.Parse(text)
		if err != nil {
			return nil, err
		}
		if err := c.Leaf.CheckSignatureFrom(issuer.Certificates[0]); err != nil {
			return nil, fmt.Errorf("operator: the server refuses the certificate: %w", err)
		}
		return map[string]string{"leaf": string(c.Leaf.Raw), "root": string(c.Root.Raw)}, nil
	}
}

func readIdentity(_ context.Context, dir string) (map[string]string, error) {
	i, err := identity.Open(dir)
	if err != nil {
		return nil, err
	}
	return map[string]string{"id": i.ID(), "server": i.Server(), "expires": i.Expires().String()}, nil
}

func readState(run string, clients []string) func(context.Context, string) (map[string]string, error) {
	return func(_ context.Context, dir string) (all map[string]string, err error) {
		s, err := state.Open(dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		all = map[string]string{}
		results, err := s.Results()
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			numbers := make([]byte, r.Size)
			if err := s.Numbers(r.ID, numbers, 0); err != nil {
				return nil, err
			}
			all[fmt.Sprint("result ", r.ID)] = fmt.Sprintf("%+v %x", r, sha256.Sum256(numbers))
		}
		for _, c := range clients {
			values, scaling, found, err := s.Read(run, c)
			if err != nil {
				return nil, err
			}
			all["client "+c] = fmt.Sprint(found, values, scaling)
		}
		return all, nil
	}
}

// readBackup restores a backup and reads the result like a server that starts.
func readBackup(ctx context.Context, dir string) (map[string]string, error) {
	f, err := os.Open(filepath.Join(dir, "backup.tar"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	to := filepath.Join(dir, "restored")
	if _, err := server.Restore(ctx, f, to, ""); err != nil {
		return nil, err
	}
	all, err := readLedger(ctx, to)
	if err != nil {
		return nil, err
	}
	delete(all, "audit") // the restore adds an event
	for name, read := range map[string]func(context.Context, string) (map[string]string, error){"blobs": readBlobs, "pki": readAuthority} {
		parts, err := read(ctx, filepath.Join(to, name))
		if err != nil {
			return nil, err
		}
		for k, v := range parts {
			all[name+" "+k] = v
		}
	}
	return all, nil
}

func withDB(p *pgtest.Server, do func(db *sql.DB) error) error {
	db, err := sql.Open("pgx", p.URL("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

func readPostgres(ctx context.Context, dir string) (all map[string]string, err error) {
	p, err := pgtest.Start(dir, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Crash()) }()
	l, err := serverledger.Open(ctx, p.URL("postgres"))
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	all = map[string]string{}
	return all, withDB(p, func(db *sql.DB) error {
		// PostgreSQL's checksums do not detect missing pages at the end of a table. Reading
		// through an index detects them, like the product's queries of counted updates and
		// sums.
		db.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, "SET enable_seqscan = off"); err != nil {
			return err
		}
		tables, err := names(ctx, db, `SELECT t.tablename || COALESCE((SELECT ' ORDER BY ' || string_agg(quote_ident(a.attname), ', ' ORDER BY array_position(i.indkey::int2[], a.attnum))
			FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
			WHERE i.indisprimary AND i.indrelid = quote_ident(t.tablename)::regclass), '') FROM pg_tables t WHERE schemaname = 'public' ORDER BY tablename`)
		if err != nil {
			return err
		}
		all["tables"] = strings.Join(tables, "; ")
		return dump(ctx, db, tables, all)
	})
}
