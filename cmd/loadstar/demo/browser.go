package demo

import (
	"os/exec"
	"runtime"
)

// OpenBrowser opens an address in the user's browser, if there is one. It does not wait. A
// failure does not matter, because the address is printed as well.
func OpenBrowser(url string) {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	c := exec.Command(name, args...)
	if c.Start() == nil {
		go func() { _ = c.Wait() }() // prevents a zombie process
	}
}
