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

// FreePort returns a port of 127.0.0.1 on which nobody listens. While this process lives, no
// other caller gets the port, neither in this process nor in another one.
func FreePort() (int, error) {
	last := errors.New("no free port")
	for range 100 {
		port := first + rand.IntN(ports)
		if _, again := taken.LoadOrStore(port, nil); again {
			continue
		}
		// A server starts to listen some time after it has got its port. Until then, the port
		// looks free to other processes, so reserve it by a name. An abstract name needs no file
		// and disappears with the process.
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

// AddressFor returns a [FreeAddress], or ends the test if there is none.
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
