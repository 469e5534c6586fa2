package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/forecast"
	"loadstar/nn/kernel"
	"loadstar/rig/bench"
	"loadstar/rig/bench/engine"
)

// engineOptions are the flags of the command.
type engineOptions struct {
	asJSON, withPeer bool
	runs             int
	seconds          float64
	only, model      string
}

func newEngine() *cobra.Command {
	var o engineOptions
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Benchmark the training engine on one core",
		Long: `Benchmark the training engine on one core, with each kernel set that the CPU
supports. It measures training steps (forward, backward, Adam) of a model at
batch size 64, inference at batch sizes 1 and 256, memory allocations per step,
and the share of the core's peak rate of fused multiply-adds that training
reaches.

Rates are per second of CPU time. The measurements alternate, and each
measurement is repeated several times. Rates are medians over the repetitions.
Ratios are computed within each repetition, so that changes in the machine's
speed cancel out; the command prints their medians.

With --peer the same model also runs in PyTorch on one thread, in alternation.
PyTorch needs Debian's packages python3-torch and libopenblas0. --peer supports
the models bose2023 and dense.`,
		Example: "  loadstar-lab bench engine --peer\n  loadstar-lab bench engine --peer --model dense\n  loadstar-lab bench engine --json --kernel avx2",
		RunE:    o.run,
	}
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.withPeer, "peer", false, "also measure PyTorch, in alternation")
	cmd.Flags().StringVar(&o.model, "model", bench.Model, "model to measure")
	cmd.Flags().IntVar(&o.runs, "runs", 7, "number of repetitions")
	cmd.Flags().Float64Var(&o.seconds, "seconds", 0.5, "CPU seconds per training measurement; other measurements take half as long")
	cmd.Flags().StringVar(&o.only, "kernel", os.Getenv(kernel.Env), "measure only this kernel set (default $"+kernel.Env+", or all that the CPU supports)")
	return cmd
}

func (o *engineOptions) run(cmd *cobra.Command, _ []string) error {
	sets := kernel.Available()
	if o.only != "" {
		k, err := kernel.Select(o.only)
		if err != nil {
			return cli.Usagef("--kernel: %w", err)
		}
		sets = []*kernel.Set{k}
	}
	d, err := benchTime(o.runs, o.seconds)
	if err != nil {
		return cli.Usage(err)
	}
	if _, ok := forecast.DefaultsOf(o.model); !ok {
		return cli.Usagef("--model: there is no model %q; loadstar model list shows them", o.model)
	}
	if o.withPeer && !slices.Contains(engine.PeerModels(), o.model) {
		return cli.Usagef("--model: the peer has no model %s; choose one of %s", o.model, strings.Join(engine.PeerModels(), ", "))
	}
	var p *engine.Peer
	if o.withPeer {
		var err error
		if p, err = engine.StartPeer(cmd.Context(), o.model); err != nil {
			return err
		}
		defer p.Stop()
	}
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	b, err := engine.Run(o.model, sets, p, o.runs, d, bar.Set)
	if err != nil {
		return err
	}
	if o.asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), b)
	}
	return printEngineBench(cmd.OutOrStdout(), o.model, b)
}

func printEngineBench(w io.Writer, model string, b *engine.Result) error {
	fmt.Fprintf(w, "%s, batch size %d, one core, FMA peak %.0f GFLOP/s\n\n", model, bench.Batch, b.PeakGflops)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "KERNELS\tTRAIN/S\tOF PEAK\tALLOCS/STEP\tINFER(1)/S\tINFER(256)/S\t")
	for _, k := range b.Kernels {
		fmt.Fprintf(t, "%s\t%.0f\t%.1f %%\t%g\t%.0f\t%.0f\t\n", k.Name, k.TrainStepsPerS, 100*k.PeakShare, k.AllocsPerStep, k.Infer1PerS, k.Infer256PerS)
	}
	if b.Peer != nil {
		fmt.Fprintf(t, "peer\t%.0f\t\t\t%.0f\t%.0f\t\n", b.Peer.TrainStepsPerS, b.Peer.Infer1PerS, b.Peer.Infer256PerS)
		for _, k := range b.Kernels {
			fmt.Fprintf(t, "%s/peer\t%.1f x\t\t\t%.1f x\t%.1f x\t\n", k.Name, *k.PeerRatio, *k.PeerRatio1, *k.PeerRatio256)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if b.Peer != nil {
		fmt.Fprintf(w, "\nThe peer is %s, one thread.\n", b.Peer.Name)
	}
	if b.Unfair {
		fmt.Fprintln(w, "It uses the slow reference BLAS: install libopenblas0 for a fair comparison.")
	}
	return nil
}
