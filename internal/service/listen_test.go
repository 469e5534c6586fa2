package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestInUse(t *testing.T) {
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", network)
		if err != nil {
			t.Log(err) // no IPv6
			continue
		}
		defer l.Close()
		_, err = Listen("--watch", l.Addr().String())
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("%v, want that the port is in use", err)
		}
		want := []string{"--watch " + l.Addr().String(), "in use", "choose another address with --watch"}
		if runtime.GOOS == "linux" {
			want = append(want, fmt.Sprintf("(process %d)", os.Getpid()))
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not contain %q", err, w)
			}
		}
	}
}

func TestNotAnAddress(t *testing.T) {
	if _, err := Listen("--listen", "7443"); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
		t.Errorf("%v does not say how to write an address", err)
	}
	if _, err := Listen("--listen", "192.0.2.1:0"); err == nil || !strings.Contains(err.Error(), "this machine does not have the address") {
		t.Errorf("%v does not say that the address is not this machine's", err)
	}
	if got := Holder("nothing"); got != "" {
		t.Errorf("%q holds what is not a port", got)
	}
}
