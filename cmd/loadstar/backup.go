package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/atomicfile"
	"loadstar/server"
)

func newBackup() *cobra.Command {
	var dir, out string
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back up a running server to one file",
		Long: `Back up a server's folder to one file. The server may be running. The file holds
a consistent copy of the ledger, the weights that the ledger refers to, and the
certificate authority with its private key. Protect the file as carefully as the
folder.

After a restore, runs continue from the backup. Rounds that were completed after
the backup are lost and are trained again.

Back up PostgreSQL and S3 with their own tools.`,
		Example: "  loadstar backup --dir loadstar-data -o loadstar.tar",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "-" {
				return server.Backup(cmd.Context(), dir, cmd.OutOrStdout())
			}
			start, size := time.Now(), int64(0)
			err := atomicfile.WritePrivate(out, func(f *os.File) error {
				if err := server.Backup(cmd.Context(), dir, f); err != nil {
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "backed up %s to %s, %s in %s; it has the private key of the certificate authority\n", dir, out, cli.Size(size), cli.Took(start))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "loadstar-data", "the server's folder")
	cmd.Flags().StringVarP(&out, "out", "o", "loadstar.tar", "file to write, or - for standard output")
	return cmd
}

func newRestore() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a server from a backup",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			start := time.Now()
			if err := server.Restore(cmd.Context(), f, dir); err != nil {
				return err
			}
			size := int64(0)
			if info, err := f.Stat(); err == nil {
				size = info.Size()
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored %s from %s, %s in %s; next: loadstar serve --dir %s\n", dir, args[0], cli.Size(size), cli.Took(start), dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "loadstar-data", "folder to restore into; it must not exist")
	return cmd
}
