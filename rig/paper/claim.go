package paper

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/config"
	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// claim is an entry of claims.yaml: a claim of the paper, the rule by which it is judged,
// and the verdict that follows from it.
type claim struct {
	ID    string `yaml:"id"`
	Claim string `yaml:"claim"`
	Where string `yaml:"where"` // section, table or figure of the paper
	Test  string `yaml:"test"`  // the rule in words
	// Untested is an expression that is true if the results do not test the claim. A claim
	// without Holds is never tested. In both cases, Why gives the reason.
	Untested string `yaml:"untested"`
	Why      string `yaml:"why"`
	// Holds and Partly are expressions. The claim holds if Holds is true. Otherwise it
	// holds partly if Partly is true, and if not, it does not hold.
	Holds  string `yaml:"holds"`
	Partly string `yaml:"partly"`
	// Arithmetic marks a rule that cannot fail, such as a rule about bytes that are
	// computed from sizes. Such claims are counted separately.
	Arithmetic bool `yaml:"arithmetic"`
	// Figures is the evidence. Each ${expression} in it is replaced by its value.
	Figures string `yaml:"figures"`
	// RuledOut lists causes that are ruled out if the claim does not hold.
	RuledOut string `yaml:"ruled_out"`
	// Before is the verdict on the first version of the results, which was written by hand.
	Before string `yaml:"before"`
	// Verdict is computed. [Paper.Verify] checks it.
	Verdict string `yaml:"verdict"`
}

// judged is a claim together with the evidence in the results.
type judged struct {
	claim
	verdict report.Verdict
	figures string
	// runs is the number of runs on whose training the rule depends, and improving the number
	// of those that were still improving when they ended.
	runs, improving int
}

func readClaims(dir string) ([]claim, error) {
	text, err := os.ReadFile(filepath.Join(dir, "claims.yaml"))
	if err != nil {
		return nil, err
	}
	var claims []claim
	if err := config.Decode(text, &claims); err != nil {
		return nil, fmt.Errorf("claims of %s: %w", filepath.Base(dir), err)
	}
	for i, c := range claims {
		if c.ID == "" || slices.ContainsFunc(claims[:i], func(other claim) bool { return other.ID == c.ID }) {
			return nil, fmt.Errorf("claims of %s: claim %d has no id, or the id of another claim", filepath.Base(dir), i+1)
		}
	}
	return claims, nil
}

// judge computes the verdict on a claim and fills in its figures.
func (r *rules) judge(c claim) (judged, error) {
	j := judged{claim: c, verdict: report.NotTested}
	fail := func(field string, err error) (judged, error) {
		return j, fmt.Errorf("%s: %s: %w", c.ID, field, err)
	}
	var err error
	if j.figures, err = r.fill(strings.TrimSpace(c.Figures)); err != nil {
		return fail("figures", err)
	}
	tested := c.Holds != ""
	if c.Untested != "" {
		untested, err := r.condition(c.Untested)
		if err != nil {
			return fail("untested", err)
		}
		tested = tested && !untested
	}
	// All rules are evaluated regardless of the verdict, so that errors in all of them are
	// found.
	holds, partly := false, false
	r.read = map[string]*experiment.Result{}
	if c.Holds != "" {
		if holds, err = r.condition(c.Holds); err != nil {
			return fail("holds", err)
		}
	}
	if c.Partly != "" {
		if partly, err = r.condition(c.Partly); err != nil {
			return fail("partly", err)
		}
	}
	var read []experiment.Result
	for _, row := range r.read {
		read = append(read, *row)
	}
	j.runs, j.improving = ended(read)
	switch {
	case !tested && c.Why == "":
		return j, fmt.Errorf("%s: it is not tested, but why is empty", c.ID)
	case !tested:
	case j.improving > 0 && !r.anyway:
		j.verdict = report.NotTrained
	case holds:
		j.verdict = report.Holds
	case partly:
		j.verdict = report.HoldsPartly
	default:
		j.verdict = report.DoesNotHold
		if c.RuledOut == "" {
			return j, fmt.Errorf("%s: it does not hold here, but ruled_out is empty", c.ID)
		}
	}
	return j, nil
}

// judge computes the verdicts on all claims of the paper. It reports the errors of all rules
// together, and claims with an error are not tested.
func (p *Paper) judge(results []experiment.Result) ([]judged, error) {
	claims, err := readClaims(p.dir)
	if err != nil {
		return nil, err
	}
	r := &rules{results: results}
	if r.published, err = p.published(); err != nil {
		return nil, err
	}
	var (
		all   []judged
		wrong []string
	)
	for _, c := range claims {
		j, err := r.judge(c)
		if err != nil {
			wrong = append(wrong, err.Error())
			j = judged{claim: c, verdict: report.NotTested, figures: "The rule of this claim has an error."}
		}
		all = append(all, j)
	}
	if len(wrong) > 0 {
		return all, fmt.Errorf("claims of %s:\n%s", p.Name, strings.Join(wrong, "\n"))
	}
	return all, nil
}

func (p *Paper) published() ([]printed, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "published.tsv"))
	if err != nil {
		return nil, err
	}
	rows, err := readPublished(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("published.tsv of %s: %w", p.Name, err)
	}
	return rows, nil
}

// withVerdicts returns the text of claims.yaml with the computed verdicts. It changes only the
// lines of verdicts, so that comments and line breaks are preserved.
func withVerdicts(text []byte, all []judged) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	lines := strings.Split(string(text), "\n")
	items := root.Content[0].Content
	for i, item := range slices.Backward(items) {
		line := fmt.Sprintf("%sverdict: %s", strings.Repeat(" ", item.Column-1), all[i].verdict)
		at := -1
		for k := 0; k+1 < len(item.Content); k += 2 {
			if key := item.Content[k]; key.Value == "verdict" {
				if at = key.Line - 1; item.Content[k+1].Line != key.Line {
					return nil, fmt.Errorf("line %d: the verdict must be on the line of its key", key.Line)
				}
			}
		}
		if at >= 0 {
			lines[at] = line
			continue
		}
		end := len(lines) // insert it after the last line of the claim that is not empty
		if i+1 < len(items) {
			end = items[i+1].Line - 1
		}
		for end > 0 && (strings.TrimSpace(lines[end-1]) == "" || strings.HasPrefix(lines[end-1], "#")) {
			end--
		}
		lines = slices.Insert(lines, end, line)
	}
	return []byte(strings.Join(lines, "\n")), nil
}
