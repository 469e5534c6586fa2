// Package operate contains the commands that call a server as a user, and the commands of a
// keeper, which holds the keys of masks.
package operate

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
)

// Commands returns all commands that call a server.
func Commands() []*cobra.Command {
	return []*cobra.Command{newToken(), newFleet(), newClient(), newRun(), newRelease(), newAudit(), newUser(), newWhoami(), newPKI()}
}

// operatorFlags contains the flags that select the server and the operator's credentials.
type operatorFlags struct{ server, identity string }

// The server and the credentials that are used if nothing else is set.
const (
	defaultServer   = "https://localhost:7443"
	defaultOperator = "loadstar-data/operator"
)

func (o *operatorFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.server, "server", "", "`URL` of the server (default $LOADSTAR_SERVER, or "+defaultServer+")")
	f.StringVar(&o.identity, "operator", "", "`folder` with the operator's key.pem, cert.pem and ca.pem (default $LOADSTAR_OPERATOR, or "+defaultOperator+")")
}

// ServerFlags adds the flags that select a server and the credentials of a user. It returns a
// function that returns the selected server and credentials.
func ServerFlags(f *pflag.FlagSet) func() (server, operator string) {
	o := &operatorFlags{}
	o.add(f)
	return o.resolve
}

// resolve returns the server and the folder with the credentials. Flags take precedence over the
// environment.
func (o *operatorFlags) resolve() (server, operator string) {
	return cmp.Or(o.server, os.Getenv("LOADSTAR_SERVER"), defaultServer), cmp.Or(o.identity, os.Getenv("LOADSTAR_OPERATOR"), defaultOperator)
}

// operator is a connection to a server with an operator's credentials.
type operator struct {
	v1.OperatorServiceClient
	http   *http.Client
	server string
}

func (o *operatorFlags) dial() (*operator, error) {
	server, folder := o.resolve()
	c, err := mtls.ReadFolder(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no operator's credentials in %s; use --operator with the folder that the server writes, DIR/operator, or set $LOADSTAR_OPERATOR", folder)
	} else if err != nil {
		return nil, err
	}
	server = strings.TrimSuffix(server, "/")
	if !strings.HasPrefix(server, "https://") {
		return nil, fmt.Errorf("the server's address %q must begin with https://: use an address such as %s", server, defaultServer)
	}
	h := mtls.Client(&refresher{RoundTripper: mtls.Transport(c.TLS()), folder: folder, server: server, had: c, warn: os.Stderr})
	return &operator{OperatorServiceClient: v1.NewOperatorServiceClient(h, server), http: h, server: server}, nil
}

// dialRun is like dial, and returns the identifier of the run that a user has named.
func (o *operatorFlags) dialRun(ctx context.Context, name string) (*operator, string, error) {
	c, err := o.dial()
	if err != nil {
		return nil, "", err
	}
	run, err := c.run(ctx, name)
	return c, run, plain(err)
}

// serverCommand returns a command that calls a server and prints the response as JSON, as CSV,
// or as the table that show writes.
func serverCommand(use, short string, args cobra.PositionalArgs, call func(cmd *cobra.Command, c *operator, args []string) (answer any, show func(w io.Writer), err error)) *cobra.Command {
	var o operatorFlags
	var asJSON, asCSV bool
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		if asJSON && asCSV {
			return cli.Usagef("use either --json or --csv")
		}
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
		w := cli.NewTable(cmd.OutOrStdout(), 0)
		if asCSV {
			w = cli.NewCSV(cmd.OutOrStdout())
		}
		show(w)
		return w.Flush()
	}}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "print the table as CSV")
	return cmd
}

// plain returns an error from the server without the protocol's error code. The result has the
// appropriate exit code if the server is unreachable or refused the call.
func plain(err error) error {
	var (
		c       *connect.Error
		unknown x509.UnknownAuthorityError
		names   x509.HostnameError
		op      *net.OpError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return cli.Refused(errors.New("the server's certificate does not come from the authority that the operator's credentials trust; use --operator with a folder of this server, or check --server"))
	case errors.As(err, &names):
		return fmt.Errorf("the server's certificate is not valid for %s; use a name for which it is valid, or start the server with --host %s", names.Host, names.Host)
	case errors.As(err, &op) && op.Op == "remote error":
		return cli.Refused(fmt.Errorf("the server does not accept the operator's certificate (%w): use --operator with a folder of this server; the certificate may have expired", op.Err))
	case !errors.As(err, &c) || c.Code() == connect.CodeUnknown:
		return err
	case c.Code() == connect.CodeUnavailable && !connect.IsWireError(err):
		return cli.Unreachable(fmt.Errorf("cannot reach the server (%s); check that the server runs, and check --server or $LOADSTAR_SERVER", c.Message()))
	case c.Code() == connect.CodeDeadlineExceeded:
		return cli.Unreachable(fmt.Errorf("the server did not answer in time (%s); try again", c.Message()))
	}
	text := errors.New(strings.TrimSuffix(c.Message(), ": refused"))
	if c.Code() == connect.CodePermissionDenied || c.Code() == connect.CodeUnauthenticated {
		return cli.Refused(text)
	}
	return text
}

// blobMost is the maximum size, in bytes, of a blob that a command fetches from a server.
const blobMost = 1 << 30

func (o *operator) blob(ctx context.Context, hash string) ([]byte, error) {
	return protocol.FetchBlob(ctx, o.http, o.server, hash, blobMost)
}
