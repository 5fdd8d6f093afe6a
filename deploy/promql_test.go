package deploy

import (
	"fmt"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

var promql = parser.NewParser(parser.Options{})

// checkExpression returns an error for an expression that asks for what the program does not
// have: a metric, a label of it, or the rate of what does not count. Else it returns the
// labels of the result.
func checkExpression(known map[string]metric, text string) ([]string, error) {
	expr, err := promql.ParseExpr(text)
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if err == nil {
			err = checkNode(known, node)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, text)
	}
	return resultLabels(known, expr), nil
}

func checkNode(known map[string]metric, node parser.Node) error {
	switch node := node.(type) {
	case *parser.VectorSelector:
		s, err := find(known, node.Name)
		if err != nil {
			return err
		}
		for _, m := range node.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(s.labels, m.Name) {
				return fmt.Errorf("%s has no label %s", node.Name, m.Name)
			}
		}
	case *parser.Call:
		if node.Func.Name != "rate" && node.Func.Name != "increase" {
			return nil
		}
		name := node.Args[0].(*parser.MatrixSelector).VectorSelector.(*parser.VectorSelector).Name
		if s, err := find(known, name); err == nil && !s.counter {
			return fmt.Errorf("%s of %s, which is no counter", node.Func.Name, name)
		}
	case *parser.AggregateExpr:
		for _, label := range node.Grouping {
			if !slices.Contains(resultLabels(known, node.Expr), label) {
				return fmt.Errorf("what is grouped has no label %s", label)
			}
		}
	}
	return nil
}

// resultLabels returns the labels of an expression's result.
func resultLabels(known map[string]metric, expr parser.Node) []string {
	switch expr := expr.(type) {
	case *parser.VectorSelector:
		s, _ := find(known, expr.Name)
		return s.labels
	case *parser.AggregateExpr:
		// topk and its like keep all labels.
		if !expr.Op.IsAggregatorWithParam() {
			return expr.Grouping
		}
	}
	for child := range parser.ChildrenIter(expr) {
		if out := resultLabels(known, child); len(out) > 0 {
			return out
		}
	}
	return nil
}
