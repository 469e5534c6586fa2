// Command pretrain trains the model of fed/serve on public data, and scores it on other
// clients by their age.
//
//	pretrain train [-without GROUP] -o FILE
//	pretrain ages [-weights FILE] [-part test] [-peer 8] GROUP...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"loadstar/fed/serve"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

// trained lists the groups on which the model is trained. The licences of the other public groups
// of readings require sharing alike, or are not verified.
var trained = []string{"cambridge-core42-2016-17", "resstock-ca-core42", "resstock-tx-core42", "resstock-vt-core42"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pretrain:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want train or ages")
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "train":
		out := f.String("o", "", "file for the weights")
		without := f.String("without", "", "group to leave out")
		steps := f.Int("steps", 2500, "steps")
		seed := f.Uint64("seed", 1, "seed")
		if err := f.Parse(args[1:]); err != nil {
			return err
		}
		var data []*series.Dataset
		for _, name := range trained {
			if name != *without {
				d, err := open(name)
				if err != nil {
					return err
				}
				data = append(data, d)
			}
		}
		shared, err := train(os.Stderr, data, k, *steps, *seed)
		if err != nil {
			return err
		}
		return os.WriteFile(*out, serve.EncodeGeneric(shared), 0o666)
	case "ages":
		weights := f.String("weights", "", "file of weights; default those of the binary")
		o := options{part: "test"}
		f.StringVar(&o.part, "part", "test", "part of the readings to score: validation or test")
		f.IntVar(&o.starts, "starts", 7, "days to score for each client")
		f.IntVar(&o.clients, "clients", 0, "number of clients, evenly spaced; 0 means all")
		f.IntVar(&o.peer, "peer", 0, "number of clients for which gradient boosting is also fitted; needs python3-sklearn")
		if err := f.Parse(args[1:]); err != nil {
			return err
		}
		m, err := serve.NewGeneric(k)
		if *weights != "" {
			var b []byte
			if b, err = os.ReadFile(*weights); err == nil {
				m, err = serve.DecodeGeneric(b, k)
			}
		}
		if err != nil {
			return err
		}
		return score(ctx, o, m, f.Args())
	}
	return fmt.Errorf("no command %q; want train or ages", args[0])
}

func score(ctx context.Context, o options, m *serve.Model, names []string) error {
	for _, name := range names {
		d, err := open(name)
		if err != nil {
			return err
		}
		t, err := o.run(ctx, d, m)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		seen := ""
		if slices.Contains(trained, name) {
			seen = ", one of the groups that the model is trained on"
		}
		t.print(os.Stdout, fmt.Sprintf("%s, %s part%s", name, o.part, seen))
	}
	return nil
}

// open opens a dataset of the repository.
func open(name string) (*series.Dataset, error) {
	desc, err := read.Load(filepath.Join("datasets", name+".yaml"))
	if err != nil {
		return nil, err
	}
	return read.Open(desc, os.Getenv("LOADSTAR_DATA"))
}
