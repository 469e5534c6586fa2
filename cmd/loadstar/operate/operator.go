// Package operate has the commands that call a server as a user.
package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/agentapi"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

// Commands returns all commands that call a server.
func Commands() []*cobra.Command {
	return []*cobra.Command{newToken(), newClients(), newRuns(), newModels(), newAudit(), newUsers(), newWeb(), newWhoami()}
}

// operatorFlags contains the flags that select the server and the operator's credentials.
type operatorFlags struct{ server, identity string }

func (o *operatorFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.server, "server", cmp.Or(os.Getenv("LOADSTAR_SERVER"), "https://localhost:7443"), "`URL` of the server ($LOADSTAR_SERVER)")
	f.StringVar(&o.identity, "operator", cmp.Or(os.Getenv("LOADSTAR_OPERATOR"), "loadstar-data/operator"), "`folder` with the operator's key.pem, cert.pem and ca.pem ($LOADSTAR_OPERATOR)")
}

// operator is a connection to a server with an operator's credentials.
type operator struct {
	v1.OperatorServiceClient
	http   *http.Client
	server string
}

func (o *operatorFlags) dial() (*operator, error) {
	c, err := mtls.ReadFolder(o.identity)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no operator's credentials; use --operator with the folder that the server writes, DIR/operator", err)
	} else if err != nil {
		return nil, err
	}
	server := strings.TrimSuffix(o.server, "/")
	h := mtls.Client(mtls.Transport(c.TLS()))
	return &operator{v1.NewOperatorServiceClient(h, server), h, server}, nil
}

// serverCommand returns a command that calls a server and prints the answer: as a table,
// which show writes, or as JSON.
func serverCommand(use, short string, args cobra.PositionalArgs, call func(cmd *cobra.Command, c *operator, args []string) (answer any, show func(w io.Writer), err error)) *cobra.Command {
	var o operatorFlags
	var asJSON bool
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		c, err := o.dial()
		if err != nil {
			return err
		}
		answer, show, err := call(cmd, c, args)
		switch {
		case err != nil:
			return plain(err)
		case asJSON:
			return cli.PrintLine(cmd.OutOrStdout(), answer)
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
		show(w)
		return w.Flush()
	}}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// plain returns an error from the server without the protocol's error code.
func plain(err error) error {
	c := (*connect.Error)(nil)
	switch {
	case !errors.As(err, &c) || c.Code() == connect.CodeUnknown:
		return err
	case c.Code() == connect.CodeUnavailable && !connect.IsWireError(err):
		return fmt.Errorf("cannot reach the server (--server, $LOADSTAR_SERVER): %s", c.Message())
	}
	err = errors.New(c.Message())
	if c.Code() == connect.CodePermissionDenied || c.Code() == connect.CodeUnauthenticated {
		return cli.Refused(err)
	}
	return err
}

// blobMost is the maximum size in bytes of a blob that is fetched from a server.
const blobMost = 1 << 30

func (o *operator) blob(ctx context.Context, hash string) ([]byte, error) {
	return agentapi.Fetch(ctx, o.http, o.server, hash, blobMost)
}
