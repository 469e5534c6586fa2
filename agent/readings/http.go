package readings

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"loadstar/internal/service"
	"loadstar/series/store"
)

const (
	// maxBody is the maximum size of a request.
	maxBody = 4 << 20
	// maxDocuments limits concurrent requests, because a document takes several times
	// its size in memory.
	maxDocuments = 2
)

// Handler returns the handler for POST /v1/readings and POST /v1/weather. It responds after the
// rows are on disk.
func (i *Intake) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/readings", func(w http.ResponseWriter, r *http.Request) { i.post(w, r, i.take) })
	mux.HandleFunc("POST /v1/weather", func(w http.ResponseWriter, r *http.Request) {
		i.post(w, r, i.takeWeather)
	})
	return mux
}

// TakeWeather stores the weather in a request's body. It accepts all formats of POST
// /v1/weather. It writes a response only on failure, and reports whether it stored weather.
func (i *Intake) TakeWeather(w http.ResponseWriter, r *http.Request) bool {
	_, ok := i.read(w, r, i.takeWeather)
	return ok
}

func (i *Intake) post(w http.ResponseWriter, r *http.Request, take func(string, io.Reader, bool) (Answer, error)) {
	answer, ok := i.read(w, r, take)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(answer) // the client has disconnected
}

// read stores the rows of a request, or responds with a problem.
func (i *Intake) read(w http.ResponseWriter, r *http.Request, take func(string, io.Reader, bool) (Answer, error)) (Answer, bool) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		service.Problem(w, http.StatusUnsupportedMediaType, "encoding", "the body is encoded; send it as it is", nil)
		return Answer{}, false
	}
	select {
	case i.documents <- struct{}{}:
		defer func() { <-i.documents }()
	case <-r.Context().Done():
		return Answer{}, false // the sender has disconnected
	}
	body := bufio.NewReader(http.MaxBytesReader(w, r.Body, maxBody))
	asJSON, err := isJSON(r, body)
	if err == nil {
		var answer Answer
		if answer, err = take("http", body, asJSON); err == nil && answer.stored() == 0 && len(answer.Refused) > 0 {
			service.Problem(w, http.StatusUnprocessableEntity, "refused", "every row was refused; refused lists them with reasons",
				map[string]any{"refused": answer.Refused, "more_refused": answer.MoreRefused})
			return answer, false
		}
		if err == nil {
			return answer, true
		}
	}
	var syntax *syntaxError
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errRows):
		service.Problem(w, http.StatusRequestEntityTooLarge, "too-large", errRows.Error(), nil)
	case errors.As(err, &large):
		service.Problem(w, http.StatusRequestEntityTooLarge, "too-large", "the body is larger than 4 MiB; send it in parts", nil)
	case errors.As(err, &syntax):
		more := map[string]any{}
		if syntax.row > 0 {
			more["row"] = syntax.row
		}
		service.Problem(w, http.StatusBadRequest, "syntax", syntax.Error(), more)
	case errors.Is(err, store.ErrNames):
		service.Problem(w, http.StatusBadRequest, "columns", err.Error(), nil)
	case errors.Is(err, errMediaType):
		service.Problem(w, http.StatusUnsupportedMediaType, "media-type", err.Error(), nil)
	case r.Context().Err() != nil:
		service.Problem(w, http.StatusBadRequest, "incomplete", "the request ended early", nil)
	case errors.Is(err, errClock):
		service.Problem(w, http.StatusServiceUnavailable, "clock", "nothing was stored, because the agent's clock is wrong; send it again later", nil)
	default: // the log has the details, which strangers need not know
		i.c.Log("a request was not stored: %v", err)
		service.Problem(w, http.StatusServiceUnavailable, "not-stored", "nothing was stored, because the agent's disk fails or is full; send it again later", nil)
	}
	return Answer{}, false
}

var errMediaType = errors.New("the body must be text/csv, application/x-ndjson or application/json")

// isJSON decides by the media type, or by the first byte if the type is not conclusive.
func isJSON(r *http.Request, body *bufio.Reader) (bool, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	switch kind {
	case "text/csv":
		return false, nil
	case "application/json", "application/x-ndjson", "application/jsonl", "application/x-jsonlines":
		return true, nil
	case "", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded": // curl's default
		b, err := peek(body)
		return strings.ContainsRune("{[", rune(b)), err
	}
	return false, errMediaType
}
