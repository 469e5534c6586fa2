package command

import (
	"context"
	"net/http"

	"loadstar/agent/api"
	"loadstar/agent/live"
	"loadstar/agent/readings"
)

// serve starts the HTTP interface, and writes forecasts to a folder if one is configured.
func (x *Agent) serve(p *parts, intake *readings.Intake) error {
	if dir := x.c.Forecast.Drop; dir != "" {
		x.Service.Subscribe(func([]*live.Issued) {
			if err := api.Drop(dir, x.Service); err != nil {
				x.o.Log.Error("cannot write the forecasts as CSV files", "error", err)
			}
		})
	}
	if x.c.HTTP.Listen == "" {
		return nil
	}
	server, err := api.New(api.Config{
		Service: x.Service, Intake: intake, Audits: &x.audits, Listen: x.c.HTTP.Listen, TokenFile: x.c.HTTP.TokenFile, Now: x.o.Now,
		More: func(mux *http.ServeMux) { control(mux, x.Service, intake, x.refused.Load) },
	})
	if err != nil {
		return err
	}
	p.start("http", func(ctx context.Context) error {
		if x.o.Listener != nil {
			return server.Serve(ctx, x.o.Listener)
		}
		return server.Run(ctx)
	})
	return nil
}
