package operator

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
)

// GetFleet is not built yet.
func (o *Operator) GetFleet(context.Context, *v1.GetFleetRequest) (*v1.GetFleetResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListAgents is not built yet.
func (o *Operator) ListAgents(context.Context, *v1.ListAgentsRequest) (*v1.ListAgentsResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// GetClient is not built yet.
func (o *Operator) GetClient(context.Context, *v1.GetClientRequest) (*v1.GetClientResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListTurns is not built yet.
func (o *Operator) ListTurns(context.Context, *v1.ListTurnsRequest) (*v1.ListTurnsResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}

// ListFindings is not built yet.
func (o *Operator) ListFindings(context.Context, *v1.ListFindingsRequest) (*v1.ListFindingsResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not built yet"))
}
