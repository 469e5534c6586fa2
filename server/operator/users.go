package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

const (
	// usualLogin is the default lifetime of a login code. maxLogin is the maximum lifetime, for
	// an invitation.
	usualLogin = time.Minute
	maxLogin   = 24 * time.Hour

	usualCertificate = 90 * 24 * time.Hour
	minCertificate   = time.Minute
	maxCertificate   = 366 * 24 * time.Hour
)

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// people handles calls about users, their certificates and sessions, join tokens and the audit
// log.
type people struct{ *Config }

// Whoami returns the caller.
func (o *people) Whoami(ctx context.Context, _ *v1.WhoamiRequest) (*v1.WhoamiResponse, error) {
	c, _ := access.From(ctx)
	return &v1.WhoamiResponse{Name: c.Name, Role: string(c.Role), Via: c.Via, Expires: millis(c.Expires)}, nil
}

// ListUsers returns all users.
func (o *people) ListUsers(ctx context.Context, _ *v1.ListUsersRequest) (*v1.ListUsersResponse, error) {
	all, err := o.Ledger.Users.Users(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListUsersResponse{}
	for _, u := range all {
		answer.Users = append(answer.Users, userOf(u))
	}
	return answer, nil
}

func userOf(u directory.User) *v1.User {
	return &v1.User{Name: u.Name, Role: u.Role, Source: u.Source, Created: millis(u.Created)}
}

// PutUser adds a user or changes a user's role.
func (o *people) PutUser(ctx context.Context, r *v1.PutUserRequest) (*v1.PutUserResponse, error) {
	if _, err := access.ParseRole(r.Role); err != nil {
		return nil, invalid("%w", err)
	}
	had, err := o.Ledger.Users.User(ctx, r.Name)
	exists := err == nil
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return nil, o.wireError(err)
	}
	switch {
	case !exists && r.Only == "change":
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no user %q; add one: loadstar user add %s --role %s", r.Name, r.Name, r.Role))
	case !exists:
		if err := access.CheckName(r.Name); err != nil {
			return nil, invalid("%w", err)
		}
	case r.Only == "add":
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("user %s already exists and has the role %s; change it: loadstar user role %s %s", r.Name, had.Role, r.Name, r.Role))
	}
	u, err := o.Ledger.Users.PutUser(ctx, r.Name, r.Role, actor(ctx), time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.PutUserResponse{User: userOf(u)}, nil
}

// RemoveUser removes a user with all sessions and certificates.
func (o *people) RemoveUser(ctx context.Context, r *v1.RemoveUserRequest) (*v1.RemoveUserResponse, error) {
	if err := o.Ledger.Users.RemoveUser(ctx, r.Name, actor(ctx), time.Now()); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.RemoveUserResponse{}, nil
}

// CreateLogin creates a login code for the caller, or for another user if the caller is an
// admin. A session cannot create a code for its own user, because a thief of the session could
// prolong the access indefinitely, even beyond a logout.
func (o *people) CreateLogin(ctx context.Context, r *v1.CreateLoginRequest) (*v1.CreateLoginResponse, error) {
	c, _ := access.From(ctx)
	user := cmp.Or(r.User, c.Name)
	if user != c.Name {
		if err := c.Need(access.Admin, "a login link for another user"); err != nil {
			return nil, err
		}
	} else if c.Via == access.ViaWeb {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("a session cannot create a login link for its own user, because the link would remain valid after it; run 'loadstar user login' with your certificate, or ask an admin"))
	}
	ttl := usualLogin
	if r.TtlSeconds != 0 {
		ttl = time.Duration(min(max(r.TtlSeconds, -1), 1<<31)) * time.Second
	}
	if ttl < time.Second || ttl > maxLogin {
		return nil, invalid("a login link can be valid for at least a second and at most %v, not %v", maxLogin, ttl)
	}
	code, expires, err := o.Access.CreateLogin(ctx, user, ttl, actor(ctx), time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.CreateLoginResponse{Code: code, Expires: millis(expires), Page: o.Page}, nil
}

// ListSessions returns the caller's sessions, or all sessions if the caller is an admin.
func (o *people) ListSessions(ctx context.Context, _ *v1.ListSessionsRequest) (*v1.ListSessionsResponse, error) {
	c, _ := access.From(ctx)
	user := c.Name
	if c.Role.Includes(access.Admin) {
		user = ""
	}
	all, err := o.Ledger.Users.Sessions(ctx, user, maxPage, time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListSessionsResponse{}
	for _, s := range all {
		answer.Sessions = append(answer.Sessions, &v1.Session{Id: s.ID, User: s.User, Created: millis(s.Created), Expires: millis(s.Expires), Via: s.Via})
	}
	return answer, nil
}

// EndSession ends a session of the caller, or of any user if the caller is an admin.
func (o *people) EndSession(ctx context.Context, r *v1.EndSessionRequest) (*v1.EndSessionResponse, error) {
	c, _ := access.From(ctx)
	now := time.Now()
	s, err := o.Ledger.Users.Session(ctx, r.Id, now)
	if err != nil {
		return nil, o.wireError(err)
	}
	if s.User != c.Name {
		if err := c.Need(access.Admin, "ending the session of another user"); err != nil {
			return nil, err
		}
	}
	if err := o.Ledger.Users.EndSession(ctx, r.Id, actor(ctx), now); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.EndSessionResponse{}, nil
}

// IssueCertificate signs a certificate for a user and stores its serial number. The server
// refuses certificates whose serial numbers are not stored.
func (o *people) IssueCertificate(ctx context.Context, r *v1.IssueCertificateRequest) (*v1.IssueCertificateResponse, error) {
	ttl := usualCertificate
	if r.TtlSeconds != 0 {
		ttl = time.Duration(min(max(r.TtlSeconds, -1), 1<<31)) * time.Second
	}
	if ttl < minCertificate || ttl > maxCertificate {
		return nil, invalid("a certificate can be valid for at least %v and at most %v, not %v", minCertificate, maxCertificate, ttl)
	}
	// The user local has only the certificates that the gateways write to their folders. A
	// server that starts after a revocation replaces them.
	if r.User == directory.LocalUser {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the certificate of user local is in the server's folder; add a user for another one: loadstar user add NAME --role admin"))
	}
	if _, err := o.Ledger.Users.User(ctx, r.User); err != nil {
		return nil, o.wireError(err)
	}
	issued, err := o.Authority.Issue(r.Csr, pki.Identity{Role: pki.Operator, ID: r.User}, ttl)
	if err != nil {
		return nil, invalid("%w", err)
	}
	leaf := issued.Leaf
	err = o.Ledger.Users.AddCertificate(ctx, directory.Certificate{Serial: pki.Serial(leaf), User: r.User, Issued: time.Now(), Expires: leaf.NotAfter}, actor(ctx))
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.IssueCertificateResponse{Certificates: issued.Chain, Roots: o.Authority.Roots()}, nil
}

// RenewCertificate issues a certificate from the newest issuer to a caller whose certificate
// comes from another issuer. The new certificate expires at the same time as the old one,
// because an admin decides how long a user has access. All callers get the roots that they must
// trust.
func (o *people) RenewCertificate(ctx context.Context, r *v1.RenewCertificateRequest) (*v1.RenewCertificateResponse, error) {
	who, ok := pki.From(ctx)
	leaf := pki.Leaf(ctx)
	if !ok || leaf == nil || who.Role != pki.Operator {
		return nil, invalid("only a certificate can be renewed, and this call comes with a session")
	}
	answer := &v1.RenewCertificateResponse{Roots: o.Authority.Roots()}
	if !o.Authority.Outdated(leaf) {
		return answer, nil
	}
	issued, err := o.Authority.Issue(r.Csr, who, time.Until(leaf.NotAfter))
	if err != nil {
		return nil, invalid("%w", err)
	}
	err = o.Ledger.Users.RenewCertificate(ctx, pki.Serial(leaf), directory.Certificate{Serial: pki.Serial(issued.Leaf), User: who.ID, Issued: time.Now(), Expires: issued.Leaf.NotAfter}, actor(ctx))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer.Certificates, answer.Roots = issued.Chain, issued.Roots
	return answer, nil
}

// ListIssuers returns the numbers of agents and of users' certificates of each issuer, so that
// an operator knows when to retire a former issuer.
func (o *people) ListIssuers(ctx context.Context, _ *v1.ListIssuersRequest) (*v1.ListIssuersResponse, error) {
	trusted := o.Authority.Issuers()
	var ids []string
	for _, i := range trusted {
		ids = append(ids, i.ID)
	}
	counts, err := o.Ledger.Directory.CountIssuers(ctx, ids, time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListIssuersResponse{}
	for _, i := range append(trusted, pki.IssuerInfo{}) {
		n := counts[i.ID]
		answer.Issuers = append(answer.Issuers, &v1.Issuer{Id: i.ID, Name: i.Name, Agents: n.Agents, Expired: n.Expired, Certificates: n.Certificates})
	}
	return answer, nil
}

// ListCertificates returns the newest certificates that have not expired.
func (o *people) ListCertificates(ctx context.Context, _ *v1.ListCertificatesRequest) (*v1.ListCertificatesResponse, error) {
	all, err := o.Ledger.Users.UserCertificates(ctx, maxPage, time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListCertificatesResponse{}
	for _, c := range all {
		answer.Certificates = append(answer.Certificates, certificateOf(c))
	}
	return answer, nil
}

func certificateOf(c directory.Certificate) *v1.Certificate {
	return &v1.Certificate{Serial: c.Serial, User: c.User, Issued: millis(c.Issued), Expires: millis(c.Expires), Revoked: millis(c.Revoked)}
}

// RevokeCertificate refuses a certificate from now on.
func (o *people) RevokeCertificate(ctx context.Context, r *v1.RevokeCertificateRequest) (*v1.RevokeCertificateResponse, error) {
	if strings.Trim(r.Serial, "0123456789abcdef") != "" || len(r.Serial) < 4 || len(r.Serial) > 32 {
		return nil, invalid("%q is not a serial number: it needs 4 to 32 hexadecimal digits, as 'loadstar user certificate list' shows them", r.Serial)
	}
	c, err := o.Ledger.Users.RevokeCertificate(ctx, r.Serial, actor(ctx), time.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.RevokeCertificateResponse{Certificate: certificateOf(c)}, nil
}
