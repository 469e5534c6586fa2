package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"loadstar/series"
)

// write leaves what 'loadstar agent run' needs to go on with the agent's folder. The history has
// been imported already; it is there because it says that the readings are generated.
func (s *site) write(past *series.Dataset) error {
	if err := series.WritePrepared(filepath.Join(s.dir, historyFile), past); err != nil {
		return err
	}
	all := s.stage.all
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by loadstar demo. The readings are GENERATED: no meter measured them.
dir: .
site: {name: %s, zone: %s, country: %s, interval: %dm}
server: required
history: %s
http: {listen: "%s"}
forecast: {h: %dh, delay: %dm}
policy: {%s} # less than the default, because the readings are generated
clients:
`, s.name, all.Clock, all.Country, all.Seconds()/60, historyFile, s.address, ahead, int(delay.Minutes()), strings.ReplaceAll(strings.Join(relaxed, ", "), "=", ": "))
	for _, c := range s.clients {
		fmt.Fprintf(&b, "  %s: {}\n", c)
	}
	return os.WriteFile(filepath.Join(s.dir, configFile), []byte(b.String()), 0o600)
}

const (
	historyFile = "history.prepared"
	configFile  = "agent.yaml"
)

// goOn returns the commands that go on with a kept folder: that of the server and one for each
// agent. Agents know the server by its port, so that must be the same.
func (x *show) goOn() []string {
	port := x.fleet.address[strings.LastIndex(x.fleet.address, ":"):]
	all := []string{fmt.Sprintf("loadstar serve --dir %s --listen 127.0.0.1%s --web %s", quoted(filepath.Join(x.dir, "server")), port,
		strings.TrimSuffix(strings.TrimPrefix(x.fleet.page, "http://"), "/"))}
	for _, s := range x.sites {
		all = append(all, "loadstar agent run --config "+quoted(filepath.Join(s.dir, configFile)))
	}
	return all
}

// quoted returns a path as a shell takes it, if it has spaces.
func quoted(path string) string {
	if strings.Contains(path, " ") {
		return strconv.Quote(path)
	}
	return path
}
