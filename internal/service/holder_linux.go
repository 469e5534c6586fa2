package service

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// listening is the state of a listening socket in /proc/net/tcp.
const listening = "0A"

// holder looks up the port in the kernel's table of sockets, and the socket among the open
// files of all processes that this user may see.
func holder(port int) string {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue // a kernel without this protocol
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			// Fields: number, local address, remote address, state, …, inode at index 9.
			x := strings.Fields(lines.Text())
			if len(x) > 9 && x[3] == listening && strings.HasSuffix(x[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+x[9]+"]"] = true
			}
		}
		f.Close()
	}
	if len(sockets) == 0 {
		return ""
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || !sockets[target] {
			continue
		}
		process := strings.Split(file, "/")[2]
		name, err := os.ReadFile("/proc/" + process + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), process)
	}
	return ""
}
