package operator

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
)

// Whoami is not built yet.
func (o *Operator) Whoami(context.Context, *v1.WhoamiRequest) (*v1.WhoamiResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListUsers is not built yet.
func (o *Operator) ListUsers(context.Context, *v1.ListUsersRequest) (*v1.ListUsersResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// PutUser is not built yet.
func (o *Operator) PutUser(context.Context, *v1.PutUserRequest) (*v1.PutUserResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// RemoveUser is not built yet.
func (o *Operator) RemoveUser(context.Context, *v1.RemoveUserRequest) (*v1.RemoveUserResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// CreateLogin is not built yet.
func (o *Operator) CreateLogin(context.Context, *v1.CreateLoginRequest) (*v1.CreateLoginResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListSessions is not built yet.
func (o *Operator) ListSessions(context.Context, *v1.ListSessionsRequest) (*v1.ListSessionsResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// EndSession is not built yet.
func (o *Operator) EndSession(context.Context, *v1.EndSessionRequest) (*v1.EndSessionResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// IssueCertificate is not built yet.
func (o *Operator) IssueCertificate(context.Context, *v1.IssueCertificateRequest) (*v1.IssueCertificateResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListCertificates is not built yet.
func (o *Operator) ListCertificates(context.Context, *v1.ListCertificatesRequest) (*v1.ListCertificatesResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// RevokeCertificate is not built yet.
func (o *Operator) RevokeCertificate(context.Context, *v1.RevokeCertificateRequest) (*v1.RevokeCertificateResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}
