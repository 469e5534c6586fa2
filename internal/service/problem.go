package service

import (
	"encoding/json"
	"maps"
	"net/http"
)

// Problem responds to a request with an error. kind is the last part of the problem's type, a
// stable name such as unknown-client. detail describes the problem and what to do. more
// contains further members and may be nil.
func Problem(w http.ResponseWriter, status int, kind, detail string, more map[string]any) {
	body := map[string]any{}
	maps.Copy(body, more)
	body["type"] = "urn:loadstar:problem:" + kind
	body["title"] = http.StatusText(status)
	body["status"] = status
	body["detail"] = detail
	data, err := json.Marshal(body)
	if err != nil { // more contains a value that JSON does not support
		data = []byte(`{"type":"about:blank","title":"Internal Server Error","status":500}`)
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client has disconnected
}
