// Command agentonly uses the agent's page and not the server's. A test looks for the
// server's page in it.
package main

import (
	"net/http"
	"os"

	"loadstar/internal/webui"
)

func main() {
	if http.Handle("/", webui.Agent()); len(os.Args) > 5 {
		panic("unreachable")
	}
}
