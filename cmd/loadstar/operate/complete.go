package operate

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

// completionLimit limits how long a shell waits for a server when it completes a word.
const completionLimit = 500 * time.Millisecond

// complete makes a command complete the arguments in its usage: RUN, RELEASE, CLIENT and
// PLAN.
func complete(cmd *cobra.Command) {
	names := strings.Fields(cmd.Use)[1:]
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		switch strings.Trim(names[len(args)], "[]") {
		case "PLAN":
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		case "RUN":
			return fromServer(cmd, func(ctx context.Context, c *operator) ([]string, error) {
				all, err := c.recentRuns(ctx)
				words := []string{lastRun + "\tthe newest run"}
				for _, r := range all {
					words = append(words, r.Id+"\t"+r.Name+", "+r.State)
				}
				return words, err
			})
		case "RELEASE":
			return fromServer(cmd, func(ctx context.Context, c *operator) (words []string, err error) {
				r, err := c.ListReleases(ctx, &v1.ListReleasesRequest{})
				for _, x := range r.GetReleases() {
					words = append(words, releaseName(x)+"\t"+releaseState(x))
				}
				return words, err
			})
		case "CLIENT":
			return fromServer(cmd, func(ctx context.Context, c *operator) (words []string, err error) {
				r, err := c.ListClients(ctx, &v1.ListClientsRequest{Limit: 100})
				for _, x := range r.GetClients() {
					words = append(words, x.Name)
				}
				return words, err
			})
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// fromServer requests words from a server. A shell cannot show an error, so fromServer
// returns no words if the server does not respond in time.
func fromServer(cmd *cobra.Command, ask func(context.Context, *operator) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	flag := func(name string) string { s, _ := cmd.Flags().GetString(name); return s } // a missing flag is empty
	o := operatorFlags{flag("server"), flag("operator"), flag("context")}
	c, err := o.dial()
	if err != nil {
		return nil, none
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionLimit)
	defer cancel()
	words, err := ask(ctx, c)
	if err != nil {
		return nil, none
	}
	return words, none
}
