package experiment

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
)

// peer contains the test errors of a forecaster outside Loadstar on some of a dataset's
// clients.
type peer struct {
	method string
	mae    map[string]float64 // by client
}

// readPeers reads the table that bench skill wrote for a dataset and a number of targets. It
// returns the peers and the errors of the reference on the same targets. Both are empty if the
// folder has no such table.
func readPeers(dir, dataset string, targets int, r forecast.Reference) (peers []peer, reference map[string]float64, err error) {
	path := filepath.Join(dir, fmt.Sprintf("%s-%d.tsv", dataset, targets))
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	baseline := map[forecast.Reference]string{
		forecast.LastValue: "persistence", forecast.LastDay: "naive-day", forecast.LastWeek: "naive-week",
	}[r]
	reference = map[string]float64{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Split(lines.Text(), "\t")
		if strings.HasPrefix(lines.Text(), "#") || fields[0] == "client" {
			continue
		}
		if len(fields) < 6 {
			return nil, nil, fmt.Errorf("%s:%d: %d fields; want a table of loadstar-lab bench skill", path, n, len(fields))
		}
		client, method := fields[0], fields[1]
		mae, err := strconv.ParseFloat(fields[5], 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		switch {
		case method == baseline:
			reference[client] = mae
		case strings.HasPrefix(method, "boosting"), strings.HasPrefix(method, "xgboost"):
			i := slices.IndexFunc(peers, func(p peer) bool { return p.method == method })
			if i < 0 {
				i = len(peers)
				peers = append(peers, peer{method, map[string]float64{}})
			}
			peers[i].mae[client] = mae
		}
	}
	return peers, reference, lines.Err()
}

// comparePeer returns the scores of a peer, and a comparison of the subject with it. own
// contains the rows of the clients tables of the subject's runs, one table for each seed.
func comparePeer(p peer, reference map[string]float64, own [][]run.Client) (Compared, error) {
	var clients []metric.Scores
	for id, mae := range p.mae {
		clients = append(clients, metric.Scores{{Name: "relative_mae", Value: mae / reference[id]}, {Name: "mae", Value: mae}})
	}
	c := compared(fmt.Sprintf("%s, %d clients", p.method, len(p.mae)), []metric.Fleet{metric.NewFleet(clients)})
	if len(own) > 0 {
		var others []string
		if c.Paired, others = pairPeer(p.mae, reference, own); len(others) > 0 {
			return c, fmt.Errorf("the error of the reference for client %s in the peer's table differs from the run's, so their targets differ; measure the peer again with loadstar-lab bench skill", others[0])
		}
	}
	return c, nil
}

// sameTargets is the maximum difference between a reference's errors on the same targets,
// because tables of peers have seven digits.
const sameTargets = 2e-6

// pairPeer compares the subject with a peer of which only each client's MAE is known. A ratio
// requires that both errors are for the same targets, so clients whose reference has different
// errors are omitted. pairPeer returns the names of these clients.
func pairPeer(mae, reference map[string]float64, own [][]run.Client) (p *Paired, others []string) {
	served, model := map[string]float64{}, map[string]float64{} // the subject's MAEs
	for _, rows := range own {
		for _, r := range rows {
			if _, ok := mae[r.Client]; !ok {
				continue
			}
			if a, b := r.MAE/r.RelativeMAE, reference[r.Client]; !(math.Abs(a-b) <= sameTargets*b) {
				others = append(others, r.Client)
				continue
			}
			served[r.Client] += r.MAE / float64(len(own))
			model[r.Client] += r.MAE * r.ModelRelativeMAE / r.RelativeMAE / float64(len(own))
		}
	}
	var ratios, alone []float64
	won := 0
	for _, id := range slices.Sorted(maps.Keys(served)) { // because the interval depends on the order
		mine, theirs := served[id], mae[id]
		ratios, alone = append(ratios, mine/theirs), append(alone, model[id]/theirs)
		if mine < theirs {
			won++
		}
	}
	nan := metric.NewSpread(nil).Median
	p = &Paired{
		Clients: len(ratios), Ratio: metric.NewSpread(ratios).Median, Low: nan, High: nan, Won: metric.Number(float64(won) / float64(len(ratios))),
		Better: nan, Worse: nan, Uncorrected: metric.NewSpread(alone).Median,
	}
	if len(ratios) > 0 {
		p.Low, p.High = interval(ratios)
	}
	return p, others
}
