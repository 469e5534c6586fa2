package report_test

import (
	"bytes"
	"fmt"
	"log"
	"strings"

	"loadstar/lab/report"
)

// Write a page with one table. The page is self-contained: it loads nothing from the network.
func ExampleReport_Write() {
	r := report.Report{
		Title: "Comparison",
		Tables: []report.Table{{
			Title:   "Error by method",
			Columns: []string{"method", "relative MAE"},
			Rows:    [][]string{{"fedavg", "0.82"}, {"local", "0.91"}},
			Best:    1,
		}},
	}
	var page bytes.Buffer
	if err := r.Write(&page); err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Contains(page.String(), "<title>Comparison"), strings.Contains(page.String(), "0.82"))
	// Output:
	// true true
}
