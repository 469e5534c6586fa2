package directory

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"loadstar/server/sqlstore"
)

const sessionColumns = "s.id, s.person, s.via, s.created, s.expires"

func scanSession(scan func(...any) error, more ...any) (s Session, err error) {
	var created, expires int64
	err = scan(append([]any{&s.ID, &s.User, &s.Via, &created, &expires}, more...)...)
	s.Created, s.Expires = sqlstore.FromMillis(created), sqlstore.FromMillis(expires)
	return s, err
}

// SessionOf returns the session whose cookie has the given hash, and the role of its user. It
// returns sqlstore.ErrNotFound if there is no such session or it has expired.
func (us *Users) SessionOf(ctx context.Context, hash []byte, now time.Time) (s Session, role string, err error) {
	defer sqlstore.Wrap(&err, "looking up a session")
	s, err = scanSession(us.store.DB.QueryRowContext(ctx, "SELECT "+sessionColumns+`, u.role FROM sessions s JOIN users u ON u.name = s.person
		WHERE s.hash = $1 AND s.expires > $2`, hash, sqlstore.ToMillis(now)).Scan, &role)
	return s, role, sqlstore.OrNotFound(err, "session")
}

// Session returns the session with an ID.
func (us *Users) Session(ctx context.Context, id string, now time.Time) (s Session, err error) {
	defer sqlstore.Wrap(&err, "reading session", id)
	s, err = scanSession(us.store.DB.QueryRowContext(ctx, "SELECT "+sessionColumns+" FROM sessions s WHERE s.id = $1 AND s.expires > $2", id, sqlstore.ToMillis(now)).Scan)
	return s, sqlstore.OrNotFound(err, "session "+id)
}

// Sessions returns up to limit sessions of a user, or of all users if user is empty, newest
// first.
func (us *Users) Sessions(ctx context.Context, user string, limit int, now time.Time) (all []Session, err error) {
	defer sqlstore.Wrap(&err, "reading sessions")
	err = sqlstore.Query(ctx, us.store.DB, func(r *sql.Rows) error {
		s, err := scanSession(r.Scan)
		all = append(all, s)
		return err
	}, "SELECT "+sessionColumns+` FROM sessions s WHERE s.expires > $1 AND ($2 = '' OR s.person = $2)
		ORDER BY s.created DESC, s.id LIMIT $3`, sqlstore.ToMillis(now), user, limit)
	return all, err
}

// EndSession ends a session and deletes the user's login links, because the thief of a session
// may have created login links. It returns sqlstore.ErrNotFound if the session has already
// ended.
func (us *Users) EndSession(ctx context.Context, id, actor string, now time.Time) error {
	return us.endSession(ctx, id, actor, now, true)
}

// Logout ends a session at its user's request. Unlike EndSession, it does not delete the
// user's login links.
func (us *Users) Logout(ctx context.Context, id, actor string, now time.Time) error {
	return us.endSession(ctx, id, actor, now, false)
}

func (us *Users) endSession(ctx context.Context, id, actor string, now time.Time, links bool) (err error) {
	defer sqlstore.Wrap(&err, "ending session", id)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		var user string
		if err := tx.QueryRowContext(ctx, "DELETE FROM sessions WHERE id = $1 RETURNING person", id).Scan(&user); err != nil {
			return sqlstore.OrNotFound(err, "session "+id)
		}
		if links {
			if err := deleteOf(ctx, tx, user, "logins WHERE person"); err != nil {
				return err
			}
		}
		return us.log.Record(ctx, tx, now, actor, "end session", user, "session "+id)
	})
}

// Certificate is a user's certificate.
type Certificate struct {
	Serial, User    string
	Issued, Expires time.Time
	Revoked         time.Time // zero if it is valid
}

const certificateColumns = "c.serial, c.person, c.issued, c.expires, c.revoked"

func scanCertificate(scan func(...any) error, more ...any) (c Certificate, err error) {
	var issued, expires, revoked int64
	err = scan(append([]any{&c.Serial, &c.User, &issued, &expires, &revoked}, more...)...)
	c.Issued, c.Expires, c.Revoked = sqlstore.FromMillis(issued), sqlstore.FromMillis(expires), sqlstore.FromMillis(revoked)
	return c, err
}

// AddCertificate stores an issued certificate. The server refuses certificates that are not
// stored. It returns sqlstore.ErrRefused if the user has too many certificates or cannot have
// one.
func (us *Users) AddCertificate(ctx context.Context, c Certificate, actor string) (err error) {
	defer sqlstore.Wrap(&err, "storing a certificate of", c.User)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		u, err := us.userFor(ctx, tx, c.User)
		if err != nil {
			return err
		}
		if u.Source == SourceOIDC {
			return fmt.Errorf("user %s signs in with the OIDC provider, and a certificate would remain valid after a change there; add a separate user for it: %w", c.User, sqlstore.ErrRefused)
		}
		if err := expireCertificates(ctx, tx, c.Issued); err != nil {
			return err
		}
		// Revoked certificates of named users need not be stored, because an unknown certificate
		// is refused too. Those of the user local must be stored (see RecordLocal).
		if u.Source != SourceServer {
			_, err = tx.ExecContext(ctx, `DELETE FROM certificates WHERE person = $1 AND revoked <> 0 AND serial NOT IN
				(SELECT serial FROM certificates WHERE person = $1 AND revoked <> 0 ORDER BY revoked DESC, serial LIMIT $2)`, c.User, maxUserCertificates)
			if err != nil {
				return err
			}
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM certificates WHERE person = $1 AND revoked = 0", c.User).Scan(&n); err != nil {
			return err
		}
		if n >= maxUserCertificates {
			return fmt.Errorf("user %s has %d valid certificates, which is the limit; revoke one first: %w", c.User, n, sqlstore.ErrRefused)
		}
		if err := insertCertificate(ctx, tx, c); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, c.Issued, actor, "issue certificate", c.User, "serial "+c.Serial+", until "+c.Expires.UTC().Format(time.RFC3339))
	})
}

func expireCertificates(ctx context.Context, tx *sqlstore.Txn, now time.Time) error {
	_, err := tx.ExecContext(ctx, "DELETE FROM certificates WHERE expires <= $1", sqlstore.ToMillis(now))
	return err
}

func insertCertificate(ctx context.Context, tx *sqlstore.Txn, c Certificate) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO certificates (serial, person, issued, expires) VALUES ($1, $2, $3, $4)", c.Serial, c.User, sqlstore.ToMillis(c.Issued), sqlstore.ToMillis(c.Expires))
	return err
}

// RecordLocal stores a certificate that a gateway found in its folder or wrote there, unless it
// is stored already. It never makes a revoked certificate valid again. If local has too many
// certificates, the oldest one becomes invalid, because a gateway must be able to start.
func (us *Users) RecordLocal(ctx context.Context, c Certificate, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "storing the certificate of", c.User)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if _, err := us.userFor(ctx, tx, c.User); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM certificates WHERE serial = $1", c.Serial).Scan(&n); err != nil || n > 0 {
			return err
		}
		if err := expireCertificates(ctx, tx, now); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE certificates SET revoked = $3 WHERE person = $1 AND revoked = 0 AND serial NOT IN
			(SELECT serial FROM certificates WHERE person = $1 AND revoked = 0 ORDER BY issued DESC, serial LIMIT $2)`, c.User, maxUserCertificates-1, sqlstore.ToMillis(now))
		if err != nil {
			return err
		}
		if err := insertCertificate(ctx, tx, c); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, now, "server", "record certificate", c.User, "serial "+c.Serial+", until "+c.Expires.UTC().Format(time.RFC3339))
	})
}

// CertificateOf returns the certificate with a serial number, and the role of its user. It
// returns sqlstore.ErrNotFound if the server has not issued it or the user was removed.
func (us *Users) CertificateOf(ctx context.Context, serial string) (c Certificate, role string, err error) {
	defer sqlstore.Wrap(&err, "looking up certificate", serial)
	c, err = scanCertificate(us.store.DB.QueryRowContext(ctx, "SELECT "+certificateColumns+`, u.role FROM certificates c JOIN users u ON u.name = c.person
		WHERE c.serial = $1`, serial).Scan, &role)
	return c, role, sqlstore.OrNotFound(err, "certificate "+serial)
}

// UserCertificates returns up to limit certificates that have not expired, newest first.
func (us *Users) UserCertificates(ctx context.Context, limit int, now time.Time) (all []Certificate, err error) {
	defer sqlstore.Wrap(&err, "reading certificates")
	err = sqlstore.Query(ctx, us.store.DB, func(r *sql.Rows) error {
		c, err := scanCertificate(r.Scan)
		all = append(all, c)
		return err
	}, "SELECT "+certificateColumns+" FROM certificates c WHERE c.expires > $1 ORDER BY c.issued DESC, c.serial LIMIT $2", sqlstore.ToMillis(now), limit)
	return all, err
}

// RevokeCertificate refuses a certificate permanently, and ends the user's sessions and login
// codes, because a thief of the key may have created them. It also refuses the certificates
// from which or to which this certificate was renewed. Exactly one valid certificate's serial
// number must begin with the prefix.
func (us *Users) RevokeCertificate(ctx context.Context, prefix, actor string, now time.Time) (c Certificate, err error) {
	defer sqlstore.Wrap(&err, "revoking certificate", prefix)
	err = us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		var found []Certificate
		err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			c, err := scanCertificate(r.Scan)
			found = append(found, c)
			return err
		}, "SELECT "+certificateColumns+" FROM certificates c WHERE c.revoked = 0 AND substr(c.serial, 1, $2) = $1 LIMIT 2", prefix, len(prefix))
		switch {
		case err != nil:
			return err
		case prefix == "" || len(found) == 0:
			return fmt.Errorf("certificate %s that is not already revoked: %w", prefix, sqlstore.ErrNotFound)
		case len(found) > 1:
			return fmt.Errorf("several certificates begin with %s; give more of the serial number: %w", prefix, sqlstore.ErrRefused)
		}
		c = found[0]
		c.Revoked = now
		// Lock the user first, like all code that adds sessions or certificates.
		if _, err := us.userFor(ctx, tx, c.User); err != nil {
			return err
		}
		serials, err := renewals(ctx, tx, c.Serial)
		if err != nil {
			return err
		}
		// Each revoked certificate gets an event, because a restored ledger may lack the newest
		// certificate.
		for _, s := range serials {
			if _, err := tx.ExecContext(ctx, "UPDATE certificates SET revoked = $2 WHERE serial = $1 AND revoked = 0", s, sqlstore.ToMillis(now)); err != nil {
				return err
			}
			if err := us.log.Record(ctx, tx, now, actor, "revoke certificate", c.User, "serial "+s); err != nil {
				return err
			}
		}
		return signOut(ctx, tx, c.User)
	})
	return c, err
}
