package testkit

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestFreePort checks that no port is returned twice, by this process or a concurrent one, and
// that a process can listen on each port.
func TestFreePort(t *testing.T) {
	const n = 1500
	if os.Getenv("LOADSTAR_TAKE") != "" {
		for range n {
			port, err := FreePort()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("port", port)
		}
		return
	}
	given := map[string]bool{}
	for range n {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		given[fmt.Sprint("port ", port)] = true
	}
	other := exec.Command(os.Args[0], "-test.run=^TestFreePort$")
	other.Env = append(os.Environ(), "LOADSTAR_TAKE=1")
	out, err := other.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "port ") {
			given[strings.TrimSpace(line)] = true
		}
	}
	if len(given) != 2*n {
		t.Errorf("%d different ports, want %d", len(given), 2*n)
	}
	address, err := FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
