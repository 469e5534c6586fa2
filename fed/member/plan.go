package member

import (
	"math"
	"slices"

	"loadstar/fed"
	"loadstar/fed/mask"
	v1 "loadstar/proto/loadstar/v1"
)

// PlanTerms returns the terms of a private plan with the given keepers.
func PlanTerms(p *fed.Plan, keepers []Pin) *v1.PrivacyTerms {
	t := &v1.PrivacyTerms{
		Least: int64(p.Privacy.Least), Quorum: int64(math.Round(1000 * p.Privacy.Quorum)), Check: p.Privacy.Check, Robust: "none",
	}
	if p.Server.Robust != "" { // not every algorithm has the setting
		t.Robust = p.Server.Robust
	}
	for _, k := range keepers {
		t.Keepers = append(t.Keepers, k[:])
	}
	slices.SortFunc(t.Keepers, slices.Compare)
	return t
}

// Limits converts the blocks of a vector for a [v1.MaskedRound].
func Limits(blocks []mask.Block) []*v1.MaskBlock {
	all := make([]*v1.MaskBlock, len(blocks))
	for i, b := range blocks {
		all[i] = &v1.MaskBlock{Length: b.Length, Limit: b.Limit}
	}
	return all
}
