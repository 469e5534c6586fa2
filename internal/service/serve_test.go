package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// start serves h until stop is called. stop returns the result of Serve.
func start(t *testing.T, grace time.Duration, h http.HandlerFunc) (url string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &http.Server{Handler: h}, make(chan error, 1)
	go func() { ended <- Serve(ctx, s, grace, func() error { return s.Serve(l) }) }()
	return "http://" + l.Addr().String(), func() error {
		cancel()
		return <-ended
	}
}

// TestServe checks that a request in progress can finish, and that it is aborted if it takes
// too long.
func TestServe(t *testing.T) {
	for _, slow := range []bool{false, true} {
		began, finish := make(chan struct{}), make(chan struct{})
		grace := time.Minute
		if slow {
			grace = time.Millisecond
		}
		url, stop := start(t, grace, func(w http.ResponseWriter, r *http.Request) {
			close(began)
			select {
			case <-finish:
				_, _ = io.WriteString(w, "done")
			case <-r.Context().Done():
			}
		})
		answered := make(chan error, 1)
		go func() {
			answer, err := http.Get(url)
			if err == nil {
				defer answer.Body.Close()
				_, err = io.ReadAll(answer.Body)
			}
			answered <- err
		}()
		<-began
		if !slow {
			time.AfterFunc(10*time.Millisecond, func() { close(finish) })
		}
		if err := stop(); err != nil {
			t.Errorf("slow %t: %v", slow, err)
		}
		if err := <-answered; (err != nil) != slow {
			t.Errorf("slow %t: %v", slow, err)
		}
	}
}

func TestServeFails(t *testing.T) {
	want := errors.New("broken")
	if err := Serve(t.Context(), &http.Server{}, time.Second, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}
