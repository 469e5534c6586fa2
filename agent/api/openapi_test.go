package api

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

func description(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestOpenAPI validates the description and all of its examples.
func TestOpenAPI(t *testing.T) {
	doc := description(t)
	if err := doc.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
		t.Fatal(err)
	}
	examples := 0
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, r := range op.Responses.Map() {
				for kind, media := range r.Value.Content {
					if media.Example != nil || len(media.Examples) > 0 {
						examples++
					} else if path != "/openapi.json" {
						t.Errorf("%s %s: the answer %s %s has no example", method, path, status, kind)
					}
				}
			}
		}
	}
	if examples < 20 {
		t.Errorf("only %d examples", examples)
	}
	// The validator must reject a wrong example.
	broken := bytes.Replace(openAPI, []byte(`"mae_kw": 0.31`), []byte(`"mae_kw": "0.31"`), 1)
	doc, err := openapi3.NewLoader().LoadFromData(broken)
	if err != nil || bytes.Equal(broken, openAPI) {
		t.Fatal(err)
	}
	if doc.Validate(t.Context(), openapi3.EnableExamplesValidation()) == nil {
		t.Error("a wrong example passed")
	}
}

// TestAnswers checks real requests and responses against the description, one for each listed
// operation and status that a test can cause.
func TestAnswers(t *testing.T) {
	doc := description(t)
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	api, f := server(t, nil)
	handler := api.Handler()
	seen := map[string]bool{}
	for _, c := range []struct {
		method, url, kind, body string
		code                    int
	}{
		{"GET", "/v1/clients", "", "", 200},
		{"GET", "/v1/clients?x=1", "", "", 400},
		{"GET", "/v1/forecasts/main-panel", "", "", 200},
		{"GET", "/v1/forecasts/main-panel?h=24h&levels=0.1,0.9&unit=kWh&tz=Asia/Kolkata", "", "", 200},
		{"GET", "/v1/forecasts/main-panel?format=csv", "", "", 200},
		{"GET", "/v1/forecasts/main-panel?h=99h", "", "", 400},
		{"GET", "/v1/forecasts/ne%22w%5C", "", "", 404},
		{"GET", "/v1/forecasts/nobody", "", "", 404},
		{"POST", "/v1/forecasts/main-panel", "", "", 200},
		{"POST", "/v1/forecasts/main-panel", "text/csv", "ds,temperature\n2026-10-25T01:00:00Z,7\n", 200},
		{"POST", "/v1/forecasts/main-panel", "text/csv", "ds\n\"", 400},
		{"POST", "/v1/forecasts/nobody", "", "", 404},
		{"GET", "/v1/forecasts/main-panel/issued?lead=24h&from=2026-10-23T00:00:00Z&to=2026-10-24T00:00:00Z", "", "", 200},
		{"GET", "/v1/forecasts/ne%22w%5C/issued", "", "", 200},
		{"GET", "/v1/forecasts/main-panel/issued?from=yesterday", "", "", 400},
		{"GET", "/v1/forecasts/nobody/issued", "", "", 404},
		{"GET", "/v1/readings/main-panel?from=1792800000&to=2026-10-25T00:00:00Z&tz=UTC", "", "", 200},
		{"GET", "/v1/readings/main-panel", "", "", 200},
		{"GET", "/v1/readings/main-panel?from=2020-01-01T00:00:00Z", "", "", 400},
		{"GET", "/v1/readings/main-panel?from=2026-10-26T00:00:00Z", "", "", 400},
		{"GET", "/v1/readings/main-panel?from=-5", "", "", 400},
		{"GET", "/v1/readings/nobody", "", "", 404},
		{"GET", "/v1/scores/main-panel", "", "", 200},
		{"GET", "/v1/scores/nobody", "", "", 404},
		{"GET", "/v1/quality/main-panel", "", "", 200},
		{"GET", "/v1/quality/nobody", "", "", 404},
		{"GET", "/v1/audit/main-panel", "", "", 200},
		{"GET", "/v1/audit/main-panel?x=1", "", "", 400},
		{"GET", "/v1/audit/nobody", "", "", 404},
		{"POST", "/v1/audit/nobody", "", "", 404},
		{"POST", "/v1/audit/main-panel", "", "", 409},
		{"GET", "/v1/models", "", "", 200},
		{"POST", "/v1/readings", "text/csv", "unique_id,ds,y\nmain-panel,2026-10-24T20:00:00Z,1\nx,2026-10-24T20:00:00Z,1\n", 200},
		{"POST", "/v1/readings", "application/json", `[{"unique_id":"main-panel","ds":"2026-10-24T20:15:00Z","y":1.5}]`, 200},
		{"POST", "/v1/readings", "text/csv", "a,b\n", 400},
		{"POST", "/v1/readings", "text/csv", "unique_id,ds,y\nx,2026-10-24T20:00:00Z,1\n", 422},
		{"POST", "/v1/readings", "text/csv", strings.Repeat("x", 5<<20), 400},
		{"POST", "/v1/weather", "application/json", `{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C"},"hourly":{"time":["2026-10-25T14:00"],"temperature_2m":[5]}}`, 200},
		{"POST", "/v1/weather", "text/csv", "ds,temperature\nsoon,7\n", 422},
		{"GET", "/openapi.json", "", "", 200},
		{"GET", "/healthz", "", "", 200},
		{"GET", "/readyz", "", "", 503},
		{"GET", "/metrics", "", "", 200},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:7446"+c.url, strings.NewReader(c.body))
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		}
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.url, err)
			continue
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.code {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.url, w.Code, w.Body, c.code)
			continue
		}
		seen[c.method+" "+route.Path] = true
		in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
		out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: w.Code, Header: w.Header(), Options: &openapi3filter.Options{IncludeResponseStatus: true}}
		out.SetBodyBytes(bytes.Clone(w.Body.Bytes()))
		if err := openapi3filter.ValidateResponse(t.Context(), out); err != nil {
			t.Errorf("%s %s: %v", c.method, c.url, err)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !seen[method+" "+path] {
				t.Errorf("%s %s is described but was not asked", method, path)
			}
		}
	}
	if f.made != 2 {
		t.Errorf("%d forecasts were made", f.made)
	}
}

func init() {
	// The validator supports only JSON; other types become text.
	for _, kind := range []string{"text/csv", "text/plain", "application/x-ndjson"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.FileBodyDecoder)
	}
	openapi3filter.RegisterBodyDecoder("application/problem+json", openapi3filter.JSONBodyDecoder)
}
