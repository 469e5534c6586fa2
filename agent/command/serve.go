package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"loadstar/agent/mqtt"
	"loadstar/agent/readings"
)

// serve starts the HTTP interface.
func (x *site) serve(p *parts, intake *readings.Intake, client *mqtt.Client, o Options) error {
	if x.c.HTTP.Listen == "" {
		return nil
	}
	mux := http.NewServeMux()
	control(mux, x.service)
	mux.Handle("POST /v1/", intake.Handler())
	l, err := net.Listen("tcp", x.c.HTTP.Listen)
	if err != nil {
		return fmt.Errorf("cannot open the HTTP interface: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	p.start("http", func(context.Context) error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	p.start("http", func(ctx context.Context) error {
		<-ctx.Done()
		return server.Close()
	})
	return nil
}
