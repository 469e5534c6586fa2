package recipe

import (
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/nn/kernel"
)

// clientOptimizer describes one permitted value of client.optimizer.
type clientOptimizer struct {
	name string
	// keys lists the keys of the optimizer's settings, without the name of their section.
	keys string
	// rate is the default learning rate.
	rate float64
	// proximal adds the proximal term in training, but not in fine-tuning.
	proximal bool
	// adaptive means that a step moves each weight by about the learning rate, whatever the
	// gradient is.
	adaptive bool
	build    func(c *fed.Client, k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer
}

var clientOptimizers = []clientOptimizer{
	{name: "sgd", keys: "lr", rate: 0.1, build: sgd}, // the default rate is our choice
	{name: "adam", keys: "lr beta1 beta2 epsilon moments", rate: 0.001, adaptive: true, build: adam},
	{name: "amsgrad", keys: "lr beta1 beta2 epsilon moments", rate: 0.001, adaptive: true, build: amsgrad},
	{name: "prox", keys: "lr mu", rate: 0.1, proximal: true, build: sgd},
	{name: "proxadam", keys: "lr beta1 beta2 epsilon mu moments", rate: 0.001, proximal: true, adaptive: true, build: adam},
}

// ClientOptimizers returns the permitted values of client.optimizer.
func ClientOptimizers() []string {
	var names []string
	for _, o := range clientOptimizers {
		names = append(names, o.name)
	}
	return names
}

var clientOptimizerSetting = setting{path: "client.optimizer", about: "optimizer of the local steps"}

// clientOptimizerSettings returns the settings of all client optimizers. A plan has only the
// settings of its own optimizer. If the optimizer is unknown, the plan has the settings of all
// optimizers, so a wrong name causes only one error.
func clientOptimizerSettings() []setting {
	all := []setting{
		{path: "client.lr", about: "learning rate", initial: 0.001, must: positive},
		{path: "client.beta1", about: "decay of the first moment", initial: 0.9, must: belowOne},
		{path: "client.beta2", about: "decay of the second moment", initial: 0.999, must: belowOne},
		{path: "client.epsilon", about: "added to the root of the second moment", initial: 1e-8, must: positive},
		{
			path: "client.mu", about: "weight of the proximal term, mu/2 times the squared distance to the received weights",
			initial: 0.01, must: nonNegative,
		},
	}
	for i, s := range all {
		key := strings.TrimPrefix(s.path, "client.")
		all[i] = s.only(optimizerHas(key))
	}
	return all
}

// optimizerHas returns a function that reports whether a plan's optimizer has a setting.
func optimizerHas(key string) func(p *fed.Plan) bool {
	return func(p *fed.Plan) bool {
		o := findClientOptimizer(p.Client.Optimizer)
		return o == nil || slices.Contains(strings.Fields(o.keys), key)
	}
}

var momentsSetting = setting{
	path: "client.moments", about: "moments between rounds; reset: they start from zero; kept: they stay at the client; averaged: the server averages the moments of shared layers",
	initial: momentsReset, quiet: true, when: optimizerHas("moments"),
}

// Values of client.moments.
const (
	momentsReset    = "reset"
	momentsKept     = "kept"
	momentsAveraged = "averaged"
)

// moments returns the permitted values of client.moments.
func (a *algorithm) moments() []string {
	if a.averages {
		return []string{momentsReset, momentsKept, momentsAveraged}
	}
	return []string{momentsReset, momentsKept}
}

// momentsOf returns the value of client.moments, which plans have only if their optimizer has
// moments.
func momentsOf(c *fed.Client) clientopt.Moments {
	switch c.Moments {
	case momentsKept:
		return clientopt.Keep
	case momentsAveraged:
		return clientopt.Average
	}
	return clientopt.Reset
}

// Averaged reports whether the server also averages the moments of the shared weights.
func Averaged(p *fed.Plan) bool { return p.Client.Moments == momentsAveraged }

// KeepsMoments reports whether clients store moments between rounds.
func KeepsMoments(p *fed.Plan) bool { return momentsOf(&p.Client) != clientopt.Reset }

func findClientOptimizer(name string) *clientOptimizer {
	i := slices.IndexFunc(clientOptimizers, func(o clientOptimizer) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return &clientOptimizers[i]
}

func sgd(_ *fed.Client, k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer {
	return &clientopt.SGD{Kernel: k, Rate: r}
}

func adam(c *fed.Client, k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer {
	return &clientopt.Adam{Kernel: k, Rate: r, Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon, Moments: momentsOf(c)}
}

func amsgrad(c *fed.Client, k *kernel.Set, r clientopt.Rate) fed.ClientOptimizer {
	return &clientopt.AMSGrad{Kernel: k, Rate: r, Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon, Moments: momentsOf(c)}
}
