package operate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

func newUserCertificate() *cobra.Command {
	cmd := &cobra.Command{Use: "certificate", Short: "Create, list and revoke users' certificates"}
	cmd.AddCommand(newCertificateCreate(), newCertificateList(), newCertificateRevoke())
	return cmd
}

func newCertificateCreate() *cobra.Command {
	var (
		dir string
		ttl time.Duration
	)
	cmd := serverCommand("create NAME", "Create a certificate for a user of the command line", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		if dir == "" {
			dir = args[0] + "-operator"
		}
		leaf, err := c.issue(cmd, args[0], dir, ttl)
		if err != nil {
			return nil, nil, err
		}
		serial := fmt.Sprintf("%032x", leaf.SerialNumber)
		return map[string]any{"folder": dir, "serial": serial, "expires": leaf.NotAfter.UTC()}, func(w io.Writer) {
			fmt.Fprintf(w, "wrote a key and a certificate of user %s to %s, valid until %s (serial %s)\n", args[0], dir, leaf.NotAfter.Local().Format(time.DateTime), serial[:12])
			fmt.Fprintf(cmd.ErrOrStderr(), "to use it: loadstar whoami --server %s --operator %s\n", c.server, dir)
		}, nil
	})
	cmd.Long = `Create a certificate that lets a user call the server from the command line. The
private key is created on this machine and is not sent to the server. The
command writes the key and the certificate to a new folder. Give this folder to
the user over a secure channel. The user passes the folder to --operator.

After the server's certificate authority has been rotated, the user's next
command fetches the new roots and a new certificate with the same expiry, and
writes them to the folder.`
	cmd.Example = "  loadstar user certificate create anna -o anna-operator"
	cmd.Flags().StringVarP(&dir, "output", "o", "", "new `folder` for key.pem, cert.pem and ca.pem (default NAME-operator)")
	cmd.Flags().DurationVar(&ttl, "ttl", 90*24*time.Hour, "time until the certificate expires, at most 8784h")
	return cmd
}

// issue creates a key, asks the server for a certificate, and writes both to a folder.
func (c *operator) issue(cmd *cobra.Command, user, dir string, ttl time.Duration) (*x509.Certificate, error) {
	if _, err := os.Lstat(filepath.Join(dir, "key.pem")); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s already has a key.pem; use a new folder", dir)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	r, err := c.IssueCertificate(cmd.Context(), &v1.IssueCertificateRequest{User: user, Csr: csr, TtlSeconds: int64(ttl / time.Second)})
	if err != nil {
		return nil, err
	}
	if len(r.Certificates) == 0 || len(r.Roots) == 0 {
		return nil, fmt.Errorf("the server sent %d certificates and %d roots, want at least one of each", len(r.Certificates), len(r.Roots))
	}
	leaf, err := x509.ParseCertificate(r.Certificates[0])
	if err != nil {
		return nil, err
	}
	made := &mtls.Credentials{Key: key, Leaf: leaf}
	if err := trust(made, r.Roots); err != nil {
		return nil, err
	}
	return leaf, mtls.WriteFolder(dir, made)
}

func newCertificateList() *cobra.Command {
	cmd := serverCommand("list", "List users' certificates, newest first", cobra.NoArgs, func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
		r, err := c.ListCertificates(cmd.Context(), &v1.ListCertificatesRequest{})
		return r, func(out io.Writer) {
			table(out, "SERIAL\tUSER\tSINCE\tUNTIL\t", func(w io.Writer) {
				for _, x := range r.Certificates {
					note := ""
					if x.Revoked != 0 {
						note = "revoked " + stamp(x.Revoked)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.Serial[:12], x.User, stamp(x.Issued), stamp(x.Expires), note)
				}
			})
		}, err
	})
	cmd.Long = "List the certificates that have not expired. The table shortens serial numbers;\n--json shows them in full."
	return cmd
}

func newCertificateRevoke() *cobra.Command {
	cmd := serverCommand("revoke SERIAL", "Revoke a user's certificate", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.RevokeCertificate(cmd.Context(), &v1.RevokeCertificateRequest{Serial: args[0]})
		return r, func(w io.Writer) {
			fmt.Fprintf(w, "revoked certificate %s of user %s, and ended the user's sessions and login links\n", r.Certificate.Serial[:12], r.Certificate.User)
		}, err
	})
	cmd.Long = `Revoke a user's certificate. The server refuses the certificate from the next
call on, even on open connections. The server also refuses earlier and later
certificates that are linked to it by a renewal after a rotation. The user's
sessions and login links end, but the user's other certificates stay valid.
SERIAL can be shortened. If you revoke the certificate of the user local, which
the server wrote to DIR/operator, the server writes a new one when it next
starts.`
	return cmd
}
