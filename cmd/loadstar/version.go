package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/nn/kernel"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the platform and the kernel set in use",
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := kernel.Default()
			if err != nil {
				return err
			}
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
				Kernel  string `json:"kernel"`
			}{version, runtime.Version(), runtime.GOOS, runtime.GOARCH, k.Name()}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), v)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "loadstar %s (%s, %s/%s, %s kernels)\n", v.Version, v.Go, v.OS, v.Arch, v.Kernel)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
