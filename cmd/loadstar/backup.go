package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/disk"
	"loadstar/server"
)

// backupOptions are the flags of the command.
type backupOptions struct {
	dir, out, into, revocations string
	keep                        int
}

func newBackup() *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back up a running server to one file",
		Long: `Back up a server's folder to one file. The server can be running. The file
contains a consistent copy of the ledger, the weights that the ledger refers to,
and the certificate authority with its private key. Protect the file as
carefully as the folder.

After a restore, runs continue from the backup. Rounds that were completed after
the backup are lost. The server abandons these rounds and continues with the
next round.

With --into, the command writes the backup into a folder of backups under a name
that contains the time, verifies it by reading it back, and removes the oldest
backups. The command also copies the list of revocations, which a restore needs,
to the same folder. The server reports the age of the newest backup in its
metrics. The timer loadstar-backup of the Debian package makes such a backup
every hour.

Back up PostgreSQL and S3 with their own tools.`,
		Example: "  loadstar backup --dir loadstar-data -o loadstar.tar\n  loadstar backup --dir loadstar-data --into backups --keep 48",
		Args:    cobra.NoArgs,
		RunE:    o.run,
	}
	cmd.Flags().StringVar(&o.dir, "dir", "loadstar-data", "the server's folder")
	cmd.Flags().StringVarP(&o.out, "out", "o", "loadstar.tar", "file to write, or - for standard output")
	cmd.Flags().StringVar(&o.into, "into", "", "write a new backup to this `folder` of backups, instead of --out")
	cmd.Flags().IntVar(&o.keep, "keep", 48, "number of backups to keep in the folder of --into")
	cmd.Flags().StringVar(&o.revocations, "revocations", "", "the server's list of revocations, if store.revocations names another `file`")
	cmd.MarkFlagsMutuallyExclusive("out", "into")
	return cmd
}

func (o *backupOptions) run(cmd *cobra.Command, _ []string) error {
	if o.out == "-" {
		return server.Backup(cmd.Context(), o.dir, cmd.OutOrStdout())
	}
	start, size := time.Now(), int64(0)
	if o.into != "" {
		if o.keep < 1 {
			return cli.Usagef("--keep must be at least 1")
		}
		b, err := server.BackupInto(cmd.Context(), o.dir, o.into, o.revocations, o.keep, start)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "backed up %s to %s, %s in %s, and verified it; it contains the private key of the certificate authority\n", o.dir, b.File, cli.Size(b.Bytes), cli.Took(start))
		return err
	}
	err := disk.WritePrivate(o.out, func(f *os.File) error {
		if err := server.Backup(cmd.Context(), o.dir, f); err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			size = info.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "backed up %s to %s, %s in %s; it contains the private key of the certificate authority\n", o.dir, o.out, cli.Size(size), cli.Took(start))
	return err
}

func newRestore() *cobra.Command {
	var (
		dir, revocations string
		without          bool
	)
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a server from a backup",
		Long: `Restore a server from a backup into a new folder.

A server lists all revocations in DIR/revocations.jsonl, next to the ledger. If
you give the newest copy of that list with --revocations, agents, clients,
tokens, certificates and users that were revoked after the backup stay revoked.
If the list is lost, --without-revocations restores without it. In this case,
repeat the revocations that you know of before agents connect.

The command revokes all join tokens, because it is unknown how often they were
used after the backup. Create new ones with 'loadstar token create'.`,
		Example: "  loadstar restore loadstar.tar --dir restored \\\n      --revocations loadstar-data/revocations.jsonl",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (revocations == "") != without {
				return cli.Usagef("a backup lacks later revocations: give the server's list with --revocations DIR/revocations.jsonl, or use --without-revocations if the list is lost")
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			start := time.Now()
			done, err := server.Restore(cmd.Context(), f, dir, revocations)
			if err != nil {
				return err
			}
			size := int64(0)
			if info, err := f.Stat(); err == nil {
				size = info.Size()
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored %s from %s, %s in %s; %d later revocations repeated, %d join tokens revoked; next: loadstar serve --dir %s\n",
				dir, args[0], cli.Size(size), cli.Took(start), done.Revocations, done.Tokens, dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "loadstar-data", "folder to restore into; it must not exist")
	cmd.Flags().StringVar(&revocations, "revocations", "", "`file` with the newest list of revocations, which the server writes")
	cmd.Flags().BoolVar(&without, "without-revocations", false, "undo all revocations made since the backup")
	return cmd
}
