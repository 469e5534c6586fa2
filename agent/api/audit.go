package api

import (
	"errors"
	"net/http"

	"loadstar/agent/audit"
	"loadstar/internal/service"
)

// startAudit starts the audit of a client. An audit takes minutes, so the response does not
// wait for it.
func (s *Server) startAudit(w http.ResponseWriter, r *http.Request) {
	client := r.PathValue("client")
	_, err := s.c.Service.Client(client)
	if err == nil {
		err = s.c.Audits.Start(client)
	}
	switch {
	case errors.Is(err, audit.ErrIdle):
		service.Problem(w, http.StatusConflict, "no-training", err.Error(), nil)
	case errors.Is(err, audit.ErrBusy):
		service.Problem(w, http.StatusConflict, "busy", err.Error(), nil)
	case err != nil:
		s.fail(w, err)
	default:
		sendCode(w, http.StatusAccepted, s.c.Audits.Status(client))
	}
}

// audit responds with the newest audit of a client.
func (s *Server) audit(w http.ResponseWriter, r *http.Request) {
	client := r.PathValue("client")
	_, err := parameters(r)
	if err == nil {
		_, err = s.c.Service.Client(client)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	send(w, s.c.Audits.Status(client))
}
