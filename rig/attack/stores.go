package main

import (
	"archive/tar"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	_ "modernc.org/sqlite" // M4 changes the ledger's schema version

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/rig/product"
)

// stores lists the attacks on a server's files and databases.
func stores() []Attack {
	return []Attack{
		{ID: "H7a", Name: "a server cannot run without the root key in a plain file", Run: rootKeyOnline},
		{ID: "H10a", Name: "restoring a backup brings a revoked agent back", Run: restoreRevoked},
		{ID: "H10b", Name: "an agent that joined after the backup ends forever after a restore", Run: restoreUnknown},
		{ID: "M4", Name: "an older program serves a newer schema", Run: newerSchema},
		{ID: "M5", Name: "the backup has the certificate authority's key for all to read", Run: readableBackup},
		{ID: "M6", Name: "ledger and weights are for all to read in a folder with mode 0755", Run: readableFiles},
		{ID: "M8b", Name: "the audit log cannot be exported without gaps", Run: auditCursor},
		{ID: "M11", Name: "a server with an empty pki folder makes a new root without a word", Run: silentRoot},
	}
}

// rootKeyOnline succeeds if a server cannot enrol agents of its fleet after the root's private
// key was removed from its folder.
func rootKeyOnline(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	must(s.JoinOne(ctx, "before"))
	root := must(firstCertificate(filepath.Join(s.Dir, "operator", "ca.pem")))
	check(s.Kill())
	moved := must(moveKeys(s.Dir, f.path("offline"), root.PublicKey))
	s, err := f.Serve(ctx)
	if errors.Is(err, product.ErrEnded) {
		return succeeded("without %s: %v", strings.Join(moved, ", "), err), nil
	}
	check(err)
	if _, err := s.JoinOne(ctx, "after"); err != nil {
		return succeeded("without %s: %v", strings.Join(moved, ", "), err), nil
	}
	now := must(firstCertificate(filepath.Join(s.Dir, "operator", "ca.pem")))
	if !now.Equal(root) {
		return succeeded("without %s the server has another root, which its agents do not trust", strings.Join(moved, ", ")), nil
	}
	return repelled("the server enrols agents without %s", strings.Join(moved, ", ")), nil
}

// silentRoot succeeds if a server starts on a ledger with agents although its pki folder is
// empty.
func silentRoot(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	must(s.JoinOne(ctx, "agent"))
	check(errors.Join(s.Kill(), os.RemoveAll(filepath.Join(s.Dir, "pki"))))
	return f.mustNotServe(ctx, "the server starts with a new root")
}

// mustNotServe starts a server on the folder of the previous one. If the server serves, the
// attack has succeeded, with the given text as its result.
func (f *Fleet) mustNotServe(ctx context.Context, text string) (Result, error) {
	_, err := f.Serve(ctx)
	if errors.Is(err, product.ErrEnded) {
		return repelled("%v", err), nil
	}
	return succeeded("%s", text), err
}

// restoreRevoked succeeds if an agent that was revoked after a backup is served once the backup
// has been restored. The list of revocations is restored, too, if the server keeps one.
func restoreRevoked(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.JoinOne(ctx, "thief"))
	must(a.Host(ctx, nil, "meter-1"))
	file := f.path("backup.tar")
	must(run(ctx, f.bin, nil, "backup", "--dir", s.Dir, "-o", file))
	o := must(s.Operators())
	must(o.Revoke(ctx, &v1.RevokeRequest{Agent: a.ID}))
	if _, err := a.checkIn(ctx, &v1.ExchangeRequest{}); err == nil {
		return Result{}, errors.New("a revoked agent is served")
	}
	args := []string{"restore", file, "--dir", f.path("restored")}
	if list := filepath.Join(s.Dir, "revocations.jsonl"); exists(list) {
		args = append(args, "--revocations", list)
		// The server adds to the list every two seconds.
		if ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
			text, err := os.ReadFile(list)
			return strings.Contains(string(text), a.ID), err
		}); err != nil || !ok {
			return Result{}, fmt.Errorf("the list of revocations does not name the agent: %w", err)
		}
	}
	check(s.Kill())
	must(run(ctx, f.bin, nil, args...))
	back := must(f.serveAs(ctx, "restored", "--listen", s.Host))
	back.Host = s.Host
	a.HTTP.CloseIdleConnections()
	_, err := a.checkIn(ctx, &v1.ExchangeRequest{})
	if err == nil {
		return succeeded("the revoked agent is served by %s", filepath.Base(back.Dir)), nil
	}
	// The restored server must serve others, because otherwise the refusal proves nothing.
	must(back.JoinOne(ctx, "other"))
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		return Result{}, fmt.Errorf("the agent is refused for another reason: %w", err)
	}
	return repelled("%v", err), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// restoreUnknown succeeds if an agent that joined after the backup ends within 10 s of the
// restored server's start.
func restoreUnknown(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	file := f.path("backup.tar")
	must(run(ctx, f.bin, nil, "backup", "--dir", s.Dir, "-o", file))
	p := must(f.StartAgent(ctx, s, "late", "1/1"))
	check(s.announced(ctx, meters))
	check(s.Kill())
	if _, err := run(ctx, f.bin, nil, "restore", file, "--dir", f.path("restored")); err != nil {
		must(run(ctx, f.bin, nil, "restore", file, "--dir", f.path("restored"), "--without-revocations"))
	}
	must(f.serveAs(ctx, "restored", "--listen", s.Host))
	select {
	case <-p.Done():
		return succeeded("the agent ended: %s", product.LastLine(p.Log())), nil
	case <-ctx.Done():
		return Result{}, ctx.Err()
	case <-time.After(10 * time.Second):
		return repelled("the agent waits: %s", product.LastLine(p.Log())), nil
	}
}

// newerSchema succeeds if a server starts on a ledger with the schema of a later version.
func newerSchema(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	check(s.Kill())
	db := must(sql.Open("sqlite", filepath.Join(s.Dir, "ledger.db")))
	_, err := db.ExecContext(ctx, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000, 1)")
	check(errors.Join(err, db.Close()))
	return f.mustNotServe(ctx, "the server starts on schema 1000")
}

// readableBackup succeeds if users other than the owner can read a file of the unpacked
// backup.
func readableBackup(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	file := f.path("backup.tar")
	must(run(ctx, f.bin, nil, "backup", "--dir", s.Dir, "-o", file))
	in := must(os.Open(file))
	defer in.Close()
	n := 0
	for r := tar.NewReader(in); ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		if h.Typeflag == tar.TypeReg && h.Mode&0o077 != 0 {
			return succeeded("%s has mode %04o", h.Name, h.Mode), nil
		}
	}
	if n == 0 {
		return Result{}, errors.New("the backup is empty")
	}
	return repelled("all %d entries are private", n), nil
}

// readableFiles succeeds if other users can read a file of the server that contains more
// than certificates, in a folder that already existed with mode 0755.
func readableFiles(ctx context.Context, f *Fleet) (Result, error) {
	dir := f.path("server")
	for _, d := range []string{dir, filepath.Join(dir, "blobs")} {
		check(os.MkdirAll(d, 0o755))
	}
	s, r := scripted(ctx, f, 1, harmless)
	if r.Run.State != "finished" {
		return Result{}, fmt.Errorf("the run is %s %s", r.Run.State, r.Run.Reason)
	}
	var open []string
	n := 0
	check(filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == s.Dir {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // temporary files of the running server
			return nil
		}
		n++
		if err == nil && info.Mode().Perm()&0o077 != 0 && !reachable(s.Dir, path) {
			return nil
		}
		if err == nil && info.Mode().Perm()&0o044 != 0 && !d.IsDir() && !onlyCertificates(path) {
			name, _ := filepath.Rel(s.Dir, path) // path is below the folder
			open = append(open, fmt.Sprintf("%s %04o", name, info.Mode().Perm()))
		}
		return err
	}))
	if len(open) > 0 {
		return succeeded("%d files are readable, such as %s", len(open), open[0]), nil
	}
	return repelled("all of %d files are private, except certificates", n), nil
}

// onlyCertificates reports whether a file contains certificates and no key.
func onlyCertificates(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(text), "BEGIN CERTIFICATE") && !strings.Contains(string(text), "PRIVATE KEY")
}

// reachable reports whether other users may enter all folders between a folder and a path.
func reachable(dir, path string) bool {
	for p := filepath.Dir(path); p != dir && len(p) > len(dir); p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil || info.Mode().Perm()&0o011 == 0 {
			return false
		}
	}
	return true
}

// auditCursor succeeds if a program that reads the audit log in pages from its start does not
// get each event exactly once, in order.
func auditCursor(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	o := must(s.Operators())
	const made = 30
	for range made {
		must(o.CreateToken(ctx, &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600}))
	}
	// The export withholds events until no older one can appear, so the last events are late.
	seen, last := 0, "0"
	_, err := product.Eventually(ctx, 40*time.Second, func() (bool, error) {
		r, err := o.ListAudit(ctx, &v1.ListAuditRequest{Limit: 7, After: last})
		if err != nil {
			return false, err
		}
		for _, e := range r.Events {
			if e.Id <= last && last != "0" {
				return false, errRepeated
			}
			last = e.Id
			if strings.Contains(e.Action, "token") {
				seen++
			}
		}
		return seen >= made, nil
	})
	switch {
	case errors.Is(err, errRepeated):
		return succeeded("%v", err), nil
	case err != nil:
		return Result{}, err
	case seen != made:
		return succeeded("%d of %d events were read", seen, made), nil
	}
	return repelled("%d events were read in pages of 7, each once", seen), nil
}

var errRepeated = errors.New("a page does not start where the previous one ended")

// moveKeys moves all files that contain the private key of a public key from one folder to
// another, and returns their names. If a file also contains certificates, moveKeys leaves
// these in place.
func moveKeys(from, to string, public any) (moved []string, err error) {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, ".pem") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !holdsKey(text, public) {
			return err
		}
		moved = append(moved, filepath.Base(path))
		return os.Rename(path, filepath.Join(to, filepath.Base(path)))
	})
	return moved, err
}
