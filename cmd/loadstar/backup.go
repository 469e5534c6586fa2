package main

import (
	"os"

	"github.com/spf13/cobra"

	"loadstar/internal/atomicfile"
	"loadstar/server"
)

func newBackup() *cobra.Command {
	var dir, out string
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Write a server's folder into one file, while it serves",
		Long: `Write a server's folder into one file, while it serves: the ledger as it is at one moment,
the weights that it names, and the certificate authority with its key. Keep the file as
safe as the folder. A run goes on from that moment when the file is restored; a
round whose clients have heard since that they are counted is abandoned.

A ledger in PostgreSQL and weights in S3 are backed up by the tools of these.`,
		Example: "  loadstar backup --dir loadstar-data -o loadstar.tar",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "-" {
				return server.Backup(cmd.Context(), dir, cmd.OutOrStdout())
			}
			return atomicfile.WritePrivate(out, func(f *os.File) error { return server.Backup(cmd.Context(), dir, f) })
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "loadstar-data", "the server's folder")
	cmd.Flags().StringVarP(&out, "out", "o", "loadstar.tar", "the file, or - for standard output")
	return cmd
}

func newRestore() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a server's folder of a backup",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			return server.Restore(cmd.Context(), f, dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "loadstar-data", "the server's folder, which must not be there")
	return cmd
}
