// Command alerts checks a file of alert rules as Prometheus reads it, and prints the metrics that the rules name, one a
// line. The end-to-end tests hold them against those of a server.
package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: alerts FILE")
		os.Exit(2)
	}
	expressions := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.ParseFile(os.Args[1], false, model.UTF8Validation, expressions, slog.Default())
	metrics := map[string]bool{}
	if groups != nil {
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				expr, err := expressions.ParseExpr(rule.Expr)
				if err != nil {
					continue // ParseFile tells of it
				}
				for _, selector := range parser.ExtractSelectors(expr) {
					for _, matcher := range selector {
						if matcher.Name == model.MetricNameLabel {
							metrics[matcher.Value] = true
						}
					}
				}
			}
		}
	}
	for _, err := range errs {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	for _, metric := range slices.Sorted(maps.Keys(metrics)) {
		fmt.Println(metric)
	}
}
