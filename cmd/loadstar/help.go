package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
)

// start is the output of loadstar without arguments.
const start = `Loadstar trains electricity-load forecasters without collecting readings.
  loadstar demo                      a federation on this machine, in a minute
  loadstar data init my.csv          forecasts from your own data
  loadstar serve                     a server for a fleet of agents
  loadstar help                      all commands; docs/ in the repository has the manual
`

// groups lists the groups of commands in the help. Commands that are not listed here belong to
// the fleet's group.
var groups = []struct {
	title string
	names string
}{
	{"Start here:", "demo doctor"},
	{"Data and training on this machine:", "data plan model simulate tune advise backtest score compare report forecast"},
	{fleetGroup, ""},
	{cli.OtherCommands, "completion help version"},
}

const fleetGroup = "A fleet:"

// related contains the entries under "See also" in a command's help.
var related = map[string]string{
	"advise":         "loadstar compare, docs/how-to/advise.md",
	"agent":          "loadstar agent check, docs/agent.md",
	"agent join":     "loadstar token create, loadstar agent run",
	"agent run":      "loadstar agent check, docs/agent.md",
	"backtest":       "loadstar forecast, docs/baselines.md",
	"score":          "loadstar backtest, docs/how-to/score.md",
	"backup":         "loadstar restore",
	"client":         "loadstar run, docs/how-to/operate.md",
	"compare":        "loadstar report, loadstar simulate",
	"data":           "docs/data.md",
	"data check":     "docs/data.md",
	"data init":      "loadstar data check, docs/data.md",
	"doctor":         "loadstar agent check, docs/troubleshooting.md",
	"forecast":       "loadstar simulate, docs/forecast.md",
	"release":        "loadstar run, docs/how-to/release.md",
	"release create": "loadstar release show, loadstar release withdraw",
	"plan":           "docs/plans.md",
	"report":         "loadstar compare",
	"restore":        "loadstar backup, loadstar serve",
	"run":            "loadstar release create, docs/how-to/operate.md",
	"run show":       "loadstar run watch, loadstar plan diff",
	"run start":      "loadstar run watch, loadstar plan explain",
	"run watch":      "loadstar run show, loadstar release create",
	"serve":          "loadstar token create, loadstar doctor, docs/how-to/operate.md",
	"simulate":       "loadstar plan init, loadstar report, docs/simulate.md",
	"token create":   "loadstar agent join",
	"data weather":   "docs/how-to/weather.md, docs/agent.md",
	"tune":           "loadstar plan init, loadstar simulate, docs/how-to/tune.md",
}

// arrange sorts the commands into groups, and adds related commands and pages to each.
func arrange(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
	}
	root.SetHelpCommandGroupID(cli.OtherCommands)
	root.SetCompletionCommandGroupID(cli.OtherCommands)
	for _, cmd := range root.Commands() {
		if cmd.IsAdditionalHelpTopicCommand() {
			continue
		}
		cmd.GroupID = fleetGroup
		for _, g := range groups {
			if slices.Contains(strings.Fields(g.names), cmd.Name()) {
				cmd.GroupID = g.title
			}
		}
	}
	for path, what := range related {
		if cmd, rest, err := root.Find(strings.Fields(path)); err == nil && len(rest) == 0 {
			cli.SeeAlso(cmd, what)
		}
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprint(cmd.OutOrStdout(), start)
		return err
	}
}
