package command

import (
	"net/http"

	"loadstar/agent/api"
	"loadstar/agent/live"
	"loadstar/agent/readings"
)

// serve starts the HTTP interface, and writes forecasts to a folder if one is configured.
func (x *site) serve(p *parts, intake *readings.Intake, o Options) error {
	if dir := x.c.Forecast.Drop; dir != "" {
		x.service.Subscribe(func([]*live.Issued) {
			if err := api.Drop(dir, x.service); err != nil {
				o.Log.Error("cannot write the forecasts as CSV files", "error", err)
			}
		})
	}
	if x.c.HTTP.Listen == "" {
		return nil
	}
	server, err := api.New(api.Config{
		Service: x.service, Intake: intake, Audits: &x.audits, Listen: x.c.HTTP.Listen, TokenFile: x.c.HTTP.TokenFile,
		More: func(mux *http.ServeMux) { control(mux, x.service, intake, x.refused.Load) },
	})
	if err != nil {
		return err
	}
	p.start("http", server.Run)
	return nil
}
