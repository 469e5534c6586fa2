package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// KeyFlags are the flags for the storage of a certificate authority's keys.
type KeyFlags struct {
	passphrase string
	signers    []string
}

// Add adds the flags.
func (k *KeyFlags) Add(f *pflag.FlagSet) {
	f.StringVar(&k.passphrase, "pki-passphrase-file", "", "`file` with the passphrase that encrypts the certificate authority's keys (default the systemd credential pki-passphrase, if there is one)")
	f.StringArrayVar(&k.signers, "pki-signer", nil, "external signer that has the issuer's key: exec:COMMAND or a `URL`; give two during a rotation")
}

// Keys reads the passphrase and requests the public keys of the external signers.
func (k *KeyFlags) Keys(ctx context.Context) (pki.Keys, error) {
	return Keys(ctx, k.passphrase, k.signers)
}

// Keys reads a passphrase from a file, or from systemd if there is no file, and requests the
// public keys of the external signers.
func Keys(ctx context.Context, passphraseFile string, signers []string) (keys pki.Keys, err error) {
	if keys.Passphrase, err = passphrase(passphraseFile); err != nil {
		return keys, err
	}
	for _, address := range signers {
		s, err := pki.OpenSigner(ctx, address)
		if err != nil {
			return keys, err
		}
		keys.Signers = append(keys.Signers, s)
	}
	return keys, nil
}

// passphrase reads a passphrase from a file, or from systemd if path is empty.
func passphrase(path string) (string, error) {
	if path == "" {
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		if dir == "" {
			return "", nil
		}
		path = filepath.Join(dir, "pki-passphrase")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	// A group may read the file, because container systems store secrets that way.
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return "", fmt.Errorf("%s contains a passphrase that everybody can read (mode %04o); run 'chmod 600' on it", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	p := strings.TrimRight(string(text), "\r\n")
	if p == "" {
		return "", fmt.Errorf("%s contains no passphrase", path)
	}
	return p, nil
}

// newPKI returns the command that manages a server's certificate authority.
func newPKI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Manage the certificate authority of a server",
		Long: `Manage the certificate authority in a server's folder, DIR/pki. The root only
certifies an issuer, which signs the certificates of agents, users and the
server. Keep the root's key, DIR/pki/root-key.pem, in a safe place offline,
because the server does not need it. Gateways need issuer.pem and, during a
rotation, previous.pem.

These commands work on files. A running server detects a change within seconds.`,
	}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "dir", "loadstar-data", "the server's folder")
	cmd.AddCommand(newPKIShow(&dir), newPKIInit(&dir), newPKIRotate(&dir), newPKIRetire(&dir), newPKIEncrypt(&dir))
	return cmd
}

// issuerLine is an issuer with the numbers of its certificates, which are nil if unknown.
type issuerLine struct {
	pki.IssuerInfo
	Agents, Expired, Users *int64
}

func newPKIShow(dir *string) *cobra.Command {
	var o operatorFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show", Short: "Show the issuers and roots of a server", Args: cobra.NoArgs,
		Long: `Show the issuers and roots in DIR/pki. If the server runs, AGENTS counts the
agents that are not revoked and whose last certificate came from the issuer,
EXPIRED counts those of their certificates that have expired, and USERS counts
the users' certificates. You can retire a previous issuer when it has no agents
and no users. By default the command uses the credentials in DIR/operator.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := pki.Issuers(filepath.Join(*dir, "pki"))
			if err != nil {
				return err
			}
			counts, counting := o.issuers(cmd.Context(), *dir)
			var lines []issuerLine
			for _, i := range all {
				line := issuerLine{IssuerInfo: i}
				if n := counts[i.ID]; n != nil {
					line.Agents, line.Expired, line.Users = &n.Agents, &n.Expired, &n.Certificates
				}
				lines = append(lines, line)
			}
			if asJSON {
				return cli.PrintLine(cmd.OutOrStdout(), lines)
			}
			if counting != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "agents and users are not counted: %v\n", counting)
			}
			w := cli.NewTable(cmd.OutOrStdout(), 0)
			table(w, "ISSUER\tROOT\tEXPIRES\tROOT EXPIRES\tKEY\tUSE\tAGENTS\tEXPIRED\tUSERS", func(w io.Writer) {
				for _, i := range lines {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Root, i.IssuerInfo.Expires.Format(time.DateOnly), i.RootExpires.Format(time.DateOnly), i.Key, use(i.IssuerInfo),
						orUnknown(i.Agents), orUnknown(i.Expired), orUnknown(i.Users))
				}
			})
			return w.Flush()
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func orUnknown(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// issuers requests the numbers of certificates from the server, and returns them by the
// issuer's id. By default it uses the credentials in the server's folder.
func (o operatorFlags) issuers(ctx context.Context, dir string) (map[string]*v1.Issuer, error) {
	if o.identity == "" && os.Getenv("LOADSTAR_OPERATOR") == "" {
		o.identity = filepath.Join(dir, "operator")
	}
	c, err := o.dial()
	if err != nil {
		return nil, err
	}
	r, err := c.ListIssuers(ctx, &v1.ListIssuersRequest{})
	if err != nil {
		return nil, plain(err)
	}
	all := map[string]*v1.Issuer{}
	for _, i := range r.Issuers {
		all[i.Id] = i
	}
	return all, nil
}

// use returns a description of what an issuer signs.
func use(i pki.IssuerInfo) string {
	switch {
	case i.Signs && i.Serves:
		return "agents, users, server"
	case i.Signs:
		return "agents, users"
	case i.Serves:
		return "server, until retired"
	}
	return "from " + i.From.Local().Format(time.DateTime)
}

func newPKIInit(dir *string) *cobra.Command {
	var keys KeyFlags
	cmd := &cobra.Command{
		Use: "init", Short: "Create a certificate authority", Args: cobra.NoArgs,
		Long: `Create a root and an issuer in DIR/pki, as 'loadstar serve' does for a new
server. If DIR/pki contains the key of a root, root-key.pem, the command creates
the issuer under that root. Agents that have joined with another authority must
join again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := keys.Keys(cmd.Context())
			if err == nil {
				err = pki.Init(filepath.Join(*dir, "pki"), k)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "created a certificate authority; move %s to a safe place offline\n", filepath.Join(*dir, "pki", "root-key.pem"))
			return nil
		},
	}
	keys.Add(cmd.Flags())
	return cmd
}

func newPKIRotate(dir *string) *cobra.Command {
	var (
		keys KeyFlags
		r    pki.Rotation
	)
	cmd := &cobra.Command{
		Use: "rotate", Short: "Replace the issuer, and optionally the root", Args: cobra.NoArgs,
		Long: `Replace the issuer of certificates. Without --root, the command needs the root's
key.

With their next call, agents renew their certificates and receive a new root.
Running agents therefore follow the rotation within 1.5 times agents.max_poll.
An agent that has just followed another rotation first waits for a third of its
certificate's lifetime, but no longer than an hour. A user's next command renews
the user's certificate. 'loadstar pki show' counts the agents and users that
have followed.

Until 'loadstar pki retire', the server trusts certificates of both issuers, and
the server's own certificate comes from the previous issuer, so agents that have
not called since the rotation still trust the server. If there are several
gateways, use --in to delay signing with the new issuer, and copy DIR/pki
(without the root's key) to all gateways before this delay ends.

In a certificate authority that an older version created, the root signs all
certificates. The command gives such an authority a new root and an issuer.`,
		Example: "  loadstar pki rotate --root-key /media/safe/root-key.pem\n  loadstar pki rotate --root --in 1h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := keys.Keys(cmd.Context())
			if err != nil {
				return err
			}
			at := filepath.Join(*dir, "pki")
			if err := pki.Rotate(at, k, r); err != nil {
				return err
			}
			all, err := pki.Issuers(at)
			if err != nil {
				return err
			}
			from, to := all[0], all[len(all)-1]
			fmt.Fprintf(cmd.OutOrStdout(), "%s replaces %s\n", to.Name, from.Name)
			if from.Root != to.Root {
				fmt.Fprintf(cmd.OutOrStdout(), "%s replaces %s; move %s to a safe place offline\n", to.Root, from.Root, filepath.Join(at, "root-key.pem"))
			}
			if r.In > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "the new issuer signs certificates from %s on; copy issuer.pem and previous.pem in %s to all gateways before then\n", to.From.Local().Format(time.DateTime), at)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "when all agents have renewed their certificates, run: loadstar pki retire")
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.Root, "root", false, "create a new root")
	f.StringVar(&r.RootKey, "root-key", "", "`file` with the root's key (default DIR/pki/root-key.pem)")
	f.DurationVar(&r.In, "in", 0, "time until the new issuer signs certificates; it is trusted immediately")
	keys.Add(f)
	return cmd
}

func newPKIRetire(dir *string) *cobra.Command {
	var o operatorFlags
	var compromised, force bool
	cmd := &cobra.Command{
		Use: "retire", Short: "End a rotation: stop trusting the previous issuer", Args: cobra.NoArgs,
		Long: `Stop trusting the previous issuer and, if the rotation replaced the root, the
previous root. From then on, the server refuses certificates that the issuer
signed. The command asks the server for the number of agents and users that
still have such certificates, and fails if there are any. By default it uses the
credentials in DIR/operator.

With --force, the command retires the issuer anyway, even while the server is
not running. An agent that did not call during the whole rotation must then join
again with a new token. The agent's old key proves its identity, so the agent
keeps its clients. With --compromised, the server refuses such proofs. Users who
did not call during the rotation need new certificates.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := filepath.Join(*dir, "pki")
			all, err := pki.Issuers(at)
			if err != nil {
				return err
			}
			if len(all) > 1 && !force {
				counts, err := o.issuers(cmd.Context(), *dir)
				if err != nil {
					return fmt.Errorf("cannot ask the server who has certificates of %s: %w; --force retires it anyway", all[0].Name, err)
				}
				if err := retirable(all[0], all[1], counts); err != nil {
					return err
				}
			}
			if err := pki.Retire(at, compromised); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the previous issuer is no longer trusted")
			return nil
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&compromised, "compromised", false, "treat the previous issuer's key as stolen")
	cmd.Flags().BoolVar(&force, "force", false, "retire the issuer even if agents or users still have its certificates")
	return cmd
}

// retirable returns an error if agents or users have certificates of the previous issuer.
func retirable(former, next pki.IssuerInfo, counts map[string]*v1.Issuer) error {
	has, known := counts[former.ID], counts[next.ID] != nil
	if has == nil || !known {
		return fmt.Errorf("the server does not use %s yet, or is another server; try again in a few seconds, or check --server and --dir", next.Name)
	}
	agents, expired := has.Agents, has.Expired
	if former.Name == former.Root && counts[""] != nil { // older versions did not include the issuer in serial numbers
		agents, expired = agents+counts[""].Agents, expired+counts[""].Expired
	}
	if agents+has.Certificates == 0 {
		return nil
	}
	return fmt.Errorf("%s use certificates of %s (%d expired), and users have %d; wait until they have called the server; with --force these agents must join again, and these users need new certificates",
		cli.Count(int(agents), "agent"), former.Name, expired, has.Certificates)
}

func newPKIEncrypt(dir *string) *cobra.Command {
	var keys KeyFlags
	var to string
	cmd := &cobra.Command{
		Use: "encrypt", Short: "Encrypt the keys with a passphrase", Args: cobra.NoArgs,
		Long: `Encrypt the keys in DIR/pki with a passphrase, in the format of age. To change
the passphrase, give the old one with --pki-passphrase-file.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := keys.Keys(cmd.Context())
			if err != nil {
				return err
			}
			with, err := passphrase(to)
			if err != nil {
				return err
			}
			if with == "" {
				return cli.Usagef("--with is missing: a file with the new passphrase")
			}
			files, err := pki.Encrypt(filepath.Join(*dir, "pki"), k, with)
			if err != nil {
				return err
			}
			for _, f := range files {
				fmt.Fprintf(cmd.OutOrStdout(), "encrypted %s\n", f)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "from now on, give the server the passphrase with keys.passphrase_file; older backups contain the keys as they were before")
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "with", "", "`file` with the new passphrase")
	keys.Add(cmd.Flags())
	return cmd
}
