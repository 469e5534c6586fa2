package directory

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// The sources of users.
const (
	SourceServer = "server" // the user local, whose certificate the server writes
	SourceAdmin  = "admin"  // an admin added the user
	SourceOIDC   = "oidc"   // the user signed in with an OIDC provider
)

// LocalUser is the user for whom the server writes a certificate to its own folder.
const LocalUser = "local"

// The limits on a user's sessions, codes and certificates, and on the number of users.
const (
	maxUsers            = 10_000
	maxSessions         = 16
	maxLogins           = 16
	maxUserCertificates = 64
)

// User is a person or program that may call the operators' API.
type User struct {
	Name, Role, Source string
	// Subject identifies a user of an OIDC provider, even if the provider changes the name.
	Subject string
	Created time.Time
}

// Session is a browser that is signed in as a user.
type Session struct {
	ID, User, Via    string
	Created, Expires time.Time
}

// Users contains the people and programs that may call the operators' API, with their
// sessions and certificates.
type Users struct {
	store *sqlstore.Store
	log   *Log
}

// NewUsers returns the users in a database.
func NewUsers(s *sqlstore.Store, log *Log) *Users { return &Users{s, log} }

// lockUsers makes transactions that change users wait for each other. It locks the user local,
// who always exists.
func (us *Users) lockUsers(ctx context.Context, tx *sqlstore.Txn) error {
	_, err := tx.ExecContext(ctx, "SELECT 1 FROM users WHERE name = $1"+us.store.LockClause("UPDATE"), LocalUser)
	return err
}

const userColumns = "name, role, source, subject, created"

func scanUser(scan func(...any) error) (u User, err error) {
	var created int64
	err = scan(&u.Name, &u.Role, &u.Source, &u.Subject, &created)
	u.Created = sqlstore.FromMillis(created)
	return u, err
}

// userFor returns a user and locks the row, so that the user cannot be removed until the
// transaction ends.
func (us *Users) userFor(ctx context.Context, tx *sqlstore.Txn, name string) (User, error) {
	u, err := scanUser(tx.QueryRowContext(ctx, "SELECT "+userColumns+" FROM users WHERE name = $1"+us.store.LockClause("UPDATE"), name).Scan)
	return u, sqlstore.OrNotFound(err, "user "+name)
}

// User returns a user. It returns sqlstore.ErrNotFound if no user has the name.
func (us *Users) User(ctx context.Context, name string) (u User, err error) {
	defer sqlstore.Wrap(&err, "reading user", name)
	u, err = scanUser(us.store.DB.QueryRowContext(ctx, "SELECT "+userColumns+" FROM users WHERE name = $1", name).Scan)
	return u, sqlstore.OrNotFound(err, "user "+name)
}

// Users returns all users by name.
func (us *Users) Users(ctx context.Context) (all []User, err error) {
	defer sqlstore.Wrap(&err, "reading users")
	err = sqlstore.Query(ctx, us.store.DB, func(r *sql.Rows) error {
		u, err := scanUser(r.Scan)
		all = append(all, u)
		return err
	}, "SELECT "+userColumns+" FROM users ORDER BY name")
	return all, err
}

// PutUser adds a user or changes a user's role. It refuses to change the role of local, so that
// an admin always exists, and any role that an OIDC provider determines.
func (us *Users) PutUser(ctx context.Context, name, role, actor string, now time.Time) (u User, err error) {
	defer sqlstore.Wrap(&err, "storing user", name)
	err = us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := us.lockUsers(ctx, tx); err != nil {
			return err
		}
		u, err = us.userFor(ctx, tx, name)
		if errors.Is(err, sqlstore.ErrNotFound) {
			u = User{Name: name, Role: role, Source: SourceAdmin, Created: now}
			return us.addUser(ctx, tx, u, actor, now)
		}
		was := u.Role
		switch {
		case err != nil || role == was:
			return err
		case u.Source == SourceServer:
			return fmt.Errorf("user %s is always admin, because its certificate is in the server's folder, whose owner can change everything: %w", name, sqlstore.ErrRefused)
		case u.Source == SourceOIDC:
			return fmt.Errorf("the provider decides the role of user %s at each sign-in; change it there: %w", name, sqlstore.ErrRefused)
		}
		u.Role = role
		if _, err := tx.ExecContext(ctx, "UPDATE users SET role = $2 WHERE name = $1", name, role); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, now, actor, "change role", name, "from "+was+" to "+role)
	})
	return u, err
}

// addUser adds a user. The caller holds the lock of lockUsers.
func (us *Users) addUser(ctx context.Context, tx *sqlstore.Txn, u User, actor string, now time.Time) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM users").Scan(&n); err != nil {
		return err
	}
	if n >= maxUsers {
		return fmt.Errorf("there are %d users, which is the limit; remove one first: %w", n, sqlstore.ErrRefused)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO users ("+userColumns+") VALUES ($1, $2, $3, $4, $5)", u.Name, u.Role, u.Source, u.Subject, sqlstore.ToMillis(u.Created))
	if err != nil {
		return err
	}
	return us.log.Record(ctx, tx, now, actor, "add user", u.Name, strings.TrimSuffix(u.Role+", "+u.Source, ", "+SourceAdmin))
}

// RemoveUser removes a user with all sessions, login codes and certificates.
func (us *Users) RemoveUser(ctx context.Context, name, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "removing user", name)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := us.lockUsers(ctx, tx); err != nil {
			return err
		}
		u, err := us.userFor(ctx, tx, name)
		if err != nil {
			return err
		}
		if u.Source == SourceServer {
			return fmt.Errorf("user %s cannot be removed, because the server writes its certificate at each start: %w", name, sqlstore.ErrRefused)
		}
		if err := removeUser(ctx, tx, name); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, now, actor, "remove user", name, "")
	})
}

// signOut ends the sessions and the login codes of a user.
func signOut(ctx context.Context, tx *sqlstore.Txn, name string) error {
	return deleteOf(ctx, tx, name, "logins WHERE person", "sessions WHERE person")
}

func removeUser(ctx context.Context, tx *sqlstore.Txn, name string) error {
	if err := signOut(ctx, tx, name); err != nil {
		return err
	}
	return deleteOf(ctx, tx, name, "certificates WHERE person", "users WHERE name")
}

// deleteOf deletes the rows of a user from tables.
func deleteOf(ctx context.Context, tx *sqlstore.Txn, name string, tables ...string) error {
	for _, table := range tables {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" = $1", name); err != nil {
			return err
		}
	}
	return nil
}

// AddLogin adds a code that opens one session of a user. Only its hash is stored, and
// only the user's newest codes stay valid.
func (us *Users) AddLogin(ctx context.Context, hash []byte, user string, expires time.Time, actor string, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "adding a login code of", user)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		u, err := us.userFor(ctx, tx, user)
		if err != nil {
			return err
		}
		if u.Source == SourceOIDC {
			return fmt.Errorf("user %s signs in with the OIDC provider, not with a login link: %w", user, sqlstore.ErrRefused)
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM logins WHERE expires <= $1", sqlstore.ToMillis(now)); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM logins WHERE person = $1 AND hash NOT IN
			(SELECT hash FROM logins WHERE person = $1 ORDER BY expires DESC, hash LIMIT $2)`, user, maxLogins-1)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO logins (hash, person, expires) VALUES ($1, $2, $3)", hash, user, sqlstore.ToMillis(expires)); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, now, actor, "create login", user, "until "+expires.UTC().Format(time.RFC3339))
	})
}

// UseLogin uses up a login code, and adds a session whose cookie has the given hash. It returns
// sqlstore.ErrRefused if the code is unknown, used or expired. actorOf returns the name of a
// user for the audit log.
func (us *Users) UseLogin(ctx context.Context, code, cookie []byte, ttl time.Duration, actorOf func(user string) string, now time.Time) (s Session, err error) {
	defer sqlstore.Wrap(&err, "using a login code")
	const where = "FROM logins WHERE hash = $1 AND expires > $2"
	refused := fmt.Errorf("the login link was already used, or it has expired, or a newer one has replaced it; get a new one with 'loadstar user login' or from an admin: %w", sqlstore.ErrRefused)
	var user string
	// Strangers can send codes, so do not take the write lock before the code is found.
	err = us.store.DB.QueryRowContext(ctx, "SELECT person "+where, code, sqlstore.ToMillis(now)).Scan(&user)
	if errors.Is(err, sql.ErrNoRows) {
		return s, refused
	} else if err != nil {
		return s, err
	}
	err = us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		// Lock the user before the code, as AddLogin and RemoveUser do.
		u, err := us.userFor(ctx, tx, user)
		if errors.Is(err, sqlstore.ErrNotFound) {
			return refused
		} else if err != nil {
			return err
		}
		r, err := tx.ExecContext(ctx, "DELETE "+where, code, sqlstore.ToMillis(now))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return refused
		}
		s, err = us.addSession(ctx, tx, Session{User: u.Name, Via: "login", Created: now, Expires: now.Add(ttl)}, cookie, actorOf(u.Name))
		return err
	})
	return s, err
}

// SignIn adds a session of a user of an OIDC provider, and adds the user the first time. The
// provider determines the role at each sign-in. SignIn finds the user by subject. If another
// user already has the name, the new user gets the name in spare.
func (us *Users) SignIn(ctx context.Context, u User, spare string, cookie []byte, ttl time.Duration, actorOf func(user string) string, now time.Time) (s Session, err error) {
	defer sqlstore.Wrap(&err, "signing in", u.Name)
	err = us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := us.lockUsers(ctx, tx); err != nil {
			return err
		}
		had, err := scanUser(tx.QueryRowContext(ctx, "SELECT "+userColumns+" FROM users WHERE subject = $1 AND source = $2", u.Subject, SourceOIDC).Scan)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			if u.Name, err = freeName(ctx, tx, u.Name, spare); err != nil {
				return err
			}
			if err := forgetExternal(ctx, tx, now); err != nil {
				return err
			}
			u.Source, u.Created = SourceOIDC, now
			if err := us.addUser(ctx, tx, u, actorOf(u.Name), now); err != nil {
				return err
			}
		case err != nil:
			return err
		case had.Role != u.Role:
			if _, err := tx.ExecContext(ctx, "UPDATE users SET role = $2 WHERE name = $1", had.Name, u.Role); err != nil {
				return err
			}
			if err := us.log.Record(ctx, tx, now, actorOf(had.Name), "change role", had.Name, "from "+had.Role+" to "+u.Role+", decided by the OIDC provider"); err != nil {
				return err
			}
			u.Name = had.Name
		default:
			u.Name = had.Name
		}
		s, err = us.addSession(ctx, tx, Session{User: u.Name, Via: SourceOIDC, Created: now, Expires: now.Add(ttl)}, cookie, actorOf(u.Name))
		return err
	})
	return s, err
}

// freeName returns the first of the names that no user has.
func freeName(ctx context.Context, tx *sqlstore.Txn, names ...string) (string, error) {
	for _, name := range names {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM users WHERE name = $1", name).Scan(&n); err != nil || n == 0 {
			return name, err
		}
	}
	return "", fmt.Errorf("there is already a user %s: %w", strings.Join(names, ", and a user "), sqlstore.ErrRefused)
}

// forgetExternal removes OIDC users who have no session if the number of users is near the
// limit. They are added again when they sign in.
func forgetExternal(ctx context.Context, tx *sqlstore.Txn, now time.Time) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM users").Scan(&n); err != nil || n < maxUsers-maxUsers/10 {
		return err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE expires <= $1", sqlstore.ToMillis(now)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM users WHERE source = $1 AND name NOT IN (SELECT person FROM sessions)", SourceOIDC)
	return err
}

// addSession adds a session. Only the user's newest sessions remain. The caller must have
// locked the user.
func (us *Users) addSession(ctx context.Context, tx *sqlstore.Txn, s Session, hash []byte, actor string) (Session, error) {
	s.ID = strings.ToLower(rand.Text()[:12])
	if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE expires <= $1", sqlstore.ToMillis(s.Created)); err != nil {
		return s, err
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE person = $1 AND id NOT IN
		(SELECT id FROM sessions WHERE person = $1 ORDER BY created DESC, id LIMIT $2)`, s.User, maxSessions-1)
	if err != nil {
		return s, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO sessions (id, hash, person, via, created, expires) VALUES ($1, $2, $3, $4, $5, $6)",
		s.ID, hash, s.User, s.Via, sqlstore.ToMillis(s.Created), sqlstore.ToMillis(s.Expires))
	if err != nil {
		return s, err
	}
	return s, us.log.Record(ctx, tx, s.Created, actor, "sign in", s.User, "session "+s.ID+", by "+s.Via)
}
