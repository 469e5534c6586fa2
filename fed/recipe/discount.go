package recipe

import (
	"loadstar/fed"
	"loadstar/fed/aggregate"
)

// discountSettings lists the settings of algorithms that discount stale updates.
var discountSettings = []setting{
	{
		path:    "server.discount",
		about:   "discount for staleness t: constant, polynomial (1+t)^-a, or hinge 1/(a(t-b)+1) beyond b",
		initial: "polynomial", choices: []string{"constant", "polynomial", "hinge"},
	},
	{
		path: "server.exponent", about: "a of the discount", initial: 0.5, must: nonNegative,
		when: func(p *fed.Plan) bool { return p.Server.Discount != "constant" },
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if p.Server.Discount == "hinge" {
				p.Server.Exponent = 10 // from the same paper as the default 0.5 for the polynomial
			}
		},
	},
	{
		path: "server.hinge", about: "b of the hinge: largest staleness without a discount", initial: 4, must: nonNegative,
		when: func(p *fed.Plan) bool { return p.Server.Discount == "hinge" },
	},
}

func discount(p *fed.Plan) aggregate.Discount {
	switch p.Server.Discount {
	case "polynomial":
		return aggregate.Polynomial(p.Server.Exponent)
	case "hinge":
		return aggregate.Hinge(p.Server.Exponent, p.Server.Hinge)
	}
	return aggregate.Constant()
}
