package access

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
)

// least is the minimum role of every call. A call that is not listed is refused.
var least = map[string]Role{
	v1.OperatorServiceWhoamiProcedure:       Viewer,
	v1.OperatorServiceGetFleetProcedure:     Viewer,
	v1.OperatorServiceListAgentsProcedure:   Viewer,
	v1.OperatorServiceListClientsProcedure:  Viewer,
	v1.OperatorServiceGetClientProcedure:    Viewer,
	v1.OperatorServiceListTurnsProcedure:    Viewer,
	v1.OperatorServiceListFindingsProcedure: Viewer,
	v1.OperatorServiceListRunsProcedure:     Viewer,
	v1.OperatorServiceGetRunProcedure:       Viewer,
	v1.OperatorServiceWatchRunProcedure:     Viewer,
	v1.OperatorServiceListAuditProcedure:    Viewer,
	v1.OperatorServiceListReleasesProcedure: Viewer,
	v1.OperatorServiceListReportsProcedure:  Viewer,
	v1.OperatorServiceListVersionsProcedure: Viewer,
	// These calls act on the caller's own account. For other users' accounts they require
	// Admin, which the calls themselves check.
	v1.OperatorServiceCreateLoginProcedure:  Viewer,
	v1.OperatorServiceListSessionsProcedure: Viewer,
	v1.OperatorServiceEndSessionProcedure:   Viewer,
	// This call acts only on the caller's own certificate.
	v1.OperatorServiceRenewCertificateProcedure: Viewer,

	v1.OperatorServiceCreateTokenProcedure:     Operator,
	v1.OperatorServiceListTokensProcedure:      Operator,
	v1.OperatorServiceListIssuersProcedure:     Operator,
	v1.OperatorServiceRevokeTokenProcedure:     Operator,
	v1.OperatorServiceRevokeProcedure:          Operator,
	v1.OperatorServiceFreeClientsProcedure:     Operator,
	v1.OperatorServiceListPlansProcedure:       Operator,
	v1.OperatorServiceExplainPlanProcedure:     Operator,
	v1.OperatorServiceStartRunProcedure:        Operator,
	v1.OperatorServiceStopRunProcedure:         Operator,
	v1.OperatorServiceRollBackRunProcedure:     Operator,
	v1.OperatorServiceCreateReleaseProcedure:   Operator,
	v1.OperatorServiceWithdrawReleaseProcedure: Operator,

	v1.OperatorServiceListUsersProcedure:         Admin,
	v1.OperatorServicePutUserProcedure:           Admin,
	v1.OperatorServiceRemoveUserProcedure:        Admin,
	v1.OperatorServiceIssueCertificateProcedure:  Admin,
	v1.OperatorServiceListCertificatesProcedure:  Admin,
	v1.OperatorServiceRevokeCertificateProcedure: Admin,
}

// Least returns the minimum role of a procedure such as /loadstar.v1.OperatorService/GetRun. It
// returns false if there is no such procedure.
func Least(procedure string) (Role, bool) {
	r, ok := least[procedure]
	return r, ok
}

// Allow returns an error if the caller in the context may not call a procedure. Every
// call passes this check.
func Allow(ctx context.Context, procedure string) error {
	c, ok := From(ctx)
	if !ok {
		return connect.NewError(connect.CodePermissionDenied, errors.New("this needs an operator's certificate or a session; get one from an admin"))
	}
	call := procedure[strings.LastIndexByte(procedure, '/')+1:]
	role, ok := Least(procedure)
	if !ok {
		return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("there is no call %q", call))
	}
	return c.Need(role, call)
}
