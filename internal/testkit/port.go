package testkit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
)

// The ports lie below those that the system uses for outgoing connections and for port 0, so
// a port is still free when a server listens on it later or after a restart.
const first, ports = 10000, 20000

var taken sync.Map // maps a port to the listener that holds its name, or nil

// FreePort returns a port of 127.0.0.1 on which nobody listens. No caller gets the port again
// while this process lives, neither here nor in another process.
func FreePort() (int, error) {
	last := errors.New("no free port")
	for range 100 {
		port := first + rand.IntN(ports)
		if _, again := taken.LoadOrStore(port, nil); again {
			continue
		}
		// A server listens some time after it got its port. Until then the port looks free to
		// other processes, and only its name is taken. An abstract name needs no file and ends
		// with the process.
		if runtime.GOOS == "linux" {
			name, err := net.Listen("unix", fmt.Sprintf("@loadstar-port-%d", port))
			if err != nil {
				last = err
				continue
			}
			taken.Store(port, name)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, last
}

// FreeAddress returns 127.0.0.1 with a port from [FreePort].
func FreeAddress() (string, error) {
	port, err := FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// AddressFor returns a [FreeAddress]. It ends the test if there is none.
func AddressFor(t interface {
	Helper()
	Fatal(...any)
},
) string {
	t.Helper()
	address, err := FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
