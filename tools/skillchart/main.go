// Command skillchart draws the README's picture of median errors by group and method. It
// reads the output of "loadstar compare --json" for the next hour and for the next day:
//
//	go run ./skillchart hour.json day.json > skill.svg
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

type comparison struct {
	Dataset   string `json:"dataset"`
	Reference string `json:"reference"`
	Methods   []struct {
		Method string  `json:"method"`
		Median float64 `json:"relative_mae_median"`
		Paired struct {
			Ratio float64 `json:"ratio"`
		} `json:"paired"`
	} `json:"methods"`
}

// positions returns the positions of a comparison's marks, by the keys of shown. Boosting has
// results for some clients only. Its mark is placed relative to the mark of the federated
// model, at the median of the clients' ratios of errors. For local training, it uses the better
// of the two lengths.
func (c comparison) positions() map[string]float64 {
	at := map[string]float64{}
	for _, m := range c.Methods {
		k := key(m.Method)
		if old, ok := at[k]; !ok || m.Median < old {
			at[k] = m.Median
		}
	}
	for _, m := range c.Methods {
		if k := key(m.Method); k == "boosting" {
			at[k] = at["ahead"] / m.Paired.Ratio
		}
	}
	return at
}

// series is a method in the picture. Its name is a prefix of the names of methods.
type series struct{ label, color, shape string }

var shown = map[string]series{
	"ridge-rich":  {"ridge regression", "#8a6d3b", "square"},
	"boosting":    {"gradient boosting on the same inputs", "#2c7a4b", "triangle"},
	"ahead":       {"dense, federated with a personal correction", "#b0123b", "circle"},
	"ahead-local": {"dense, each client alone, better of two lengths", "#3b6fb0", "ring"},
}

const (
	left, width, top, row = 190, 300, 90, 26
	low, high             = 0.4, 1.0
	gap                   = 60
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: skillchart HOUR.json DAY.json")
		os.Exit(2)
	}
	var panels [2][]comparison
	for i, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &panels[i])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "skillchart:", err)
			os.Exit(1)
		}
	}
	draw(panels)
}

func draw(panels [2][]comparison) {
	n := len(panels[0])
	height := top + row*n + 70
	fmt.Printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", left+2*width+gap+30, height)
	fmt.Println(`<rect width="100%" height="100%" fill="#fff"/>`)
	for p, title := range []string{"next hour, relative to the last value", "next 24 hours, relative to last week"} {
		at := left + p*(width+gap)
		fmt.Printf(`<text x="%d" y="%d" fill="#222" font-weight="bold">%s</text>`+"\n", at, top-36, title)
		for tick := low; tick < high+0.01; tick += 0.1 {
			x := place(at, tick)
			fmt.Printf(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" fill="#666" text-anchor="middle">%.1f</text>`+"\n",
				x, x, top-14, top+row*n-8, x, top-18, tick)
		}
		for i, c := range panels[p] {
			y := top + row*i
			if p == 0 {
				fmt.Printf(`<text x="%d" y="%d" fill="#222" text-anchor="end">%s</text>`+"\n", left-14, y+4, name(c.Dataset))
			}
			positions := c.positions()
			for _, k := range []string{"ridge-rich", "boosting", "ahead-local", "ahead"} {
				if v, ok := positions[k]; ok {
					mark(shown[k], place(at, v), float64(y))
				}
			}
		}
	}
	legend(top + row*n + 22)
	fmt.Println("</svg>")
}

// key returns the key in shown to which a method belongs.
func key(method string) string {
	switch {
	case strings.HasPrefix(method, "boosting"):
		return "boosting"
	case strings.HasSuffix(method, "-ahead"):
		return "ahead"
	case strings.HasSuffix(method, "-ahead-local") || strings.HasSuffix(method, "-ahead-local-short"):
		return "ahead-local"
	}
	return method
}

func name(dataset string) string {
	dataset, _, _ = strings.Cut(dataset, "-core")
	if place, ok := strings.CutPrefix(dataset, "resstock-"); ok {
		return "homes, " + strings.ToUpper(place) + " (simulated)"
	}
	if dataset == "sgsc" {
		return "homes, NSW"
	}
	return "buildings, " + strings.ToUpper(dataset[:1]) + dataset[1:]
}

func place(at int, v float64) float64 {
	v = min(max(v, low), high+0.05)
	return float64(at) + float64(width)*(v-low)/(high-low)
}

func mark(s series, x, y float64) {
	switch s.shape {
	case "square":
		fmt.Printf(`<rect x="%.1f" y="%.1f" width="9" height="9" fill="%s"/>`+"\n", x-4.5, y-4.5, s.color)
	case "triangle":
		fmt.Printf(`<path d="M%.1f %.1f l5.5 9.5 h-11 z" fill="%s"/>`+"\n", x, y-6, s.color)
	case "ring":
		fmt.Printf(`<circle cx="%.1f" cy="%.1f" r="4.5" fill="none" stroke="%s" stroke-width="2"/>`+"\n", x, y, s.color)
	default:
		fmt.Printf(`<circle cx="%.1f" cy="%.1f" r="5.5" fill="%s"/>`+"\n", x, y, s.color)
	}
}

func legend(y int) {
	all := slices.SortedFunc(maps.Values(shown), func(a, b series) int { return strings.Compare(a.label, b.label) })
	for i, s := range all {
		x, y := 60+float64(i%2)*400, float64(y+22*(i/2))
		mark(s, x, y)
		fmt.Printf(`<text x="%.1f" y="%.1f" fill="#222">%s</text>`+"\n", x+12, y+4, s.label)
	}
}
