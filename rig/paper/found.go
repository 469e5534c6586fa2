package paper

import (
	"fmt"
	"regexp"
	"strings"
)

// The page about all papers has a section that is generated from found.md. That text contains
// expressions like those of claims.yaml, each after the name of its paper: ${bose2024:
// mean(v(...))}. ${claims: VERDICT} is the number of all papers' claims with a verdict, and
// ${claims: all} is the number of all claims. ${improving: PAPER} is the share of a paper's
// runs that were still improving, in per cent, and ${hours: PAPER} their CPU time.

var foundIn = regexp.MustCompile(`^\s*([a-z0-9]+):\s*(.*)$`)

// found fills in the expressions of the text.
func found(text string, papers []*Paper, claims [][]judged) (string, error) {
	var first error
	all := map[string]*rules{}
	shares, hours := map[string]string{}, map[string]string{}
	for _, p := range papers {
		results, err := p.Results()
		if err != nil {
			return "", err
		}
		published, err := p.published()
		if err != nil {
			return "", err
		}
		all[p.Name] = &rules{results: results, published: published}
		runs, improving := ended(results)
		shares[p.Name] = fmt.Sprintf("%.0f", 100*float64(improving)/float64(max(1, runs)))
		hours[p.Name] = fmt.Sprintf("%.1f", costOf(results).hours)
	}
	out := placeholder.ReplaceAllStringFunc(text, func(whole string) string {
		m := foundIn.FindStringSubmatch(strings.ReplaceAll(placeholder.FindStringSubmatch(whole)[1], "\n", " "))
		var value string
		err := fmt.Errorf("%s does not name a paper", whole)
		if m != nil {
			switch r := all[m[1]]; {
			case m[1] == "claims":
				value, err = fmt.Sprint(countClaims(claims, m[2])), nil
			case m[1] == "improving" && shares[m[2]] != "":
				value, err = shares[m[2]], nil
			case m[1] == "hours" && hours[m[2]] != "":
				value, err = hours[m[2]], nil
			case r != nil:
				value, err = r.fill("${" + m[2] + "}")
			}
		}
		if err != nil && first == nil {
			first = err
		}
		return value
	})
	return out, first
}

// countClaims counts the claims of all papers with a verdict, or all of them.
func countClaims(claims [][]judged, verdict string) int {
	n := 0
	for _, of := range claims {
		for _, c := range of {
			if verdict == "all" || c.group() == verdict {
				n++
			}
		}
	}
	return n
}
