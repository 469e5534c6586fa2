package service

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Listen listens on a TCP address. If the port is in use, the error names the flag for the
// address and, if it is known, the process that holds the port.
func Listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: the port is in use%s; stop that process, or choose another address with %s: %w", flag, address, by(address), flag, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %s: this user may not listen on the port; choose a port above 1023 with %s: %w", flag, address, flag, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s %s: this machine does not have the address; use one of its own, or only a port such as :7443: %w", flag, address, err)
	}
	return nil, fmt.Errorf("%s %s: %w; write an address as HOST:PORT or :PORT", flag, address, err)
}

func by(address string) string {
	if h := Holder(address); h != "" {
		return " by " + h
	}
	return ""
}

// Holder names the process that listens on the port of an address, such as "loadstar
// (process 4711)". It returns "" if it finds no process, for example because the user
// may not see it.
func Holder(address string) string {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	number, err := net.LookupPort("tcp", text)
	if err != nil || number == 0 {
		return ""
	}
	return holder(number)
}
