// Checks PromQL by Prometheus' own parser: reads expressions from stdin, one a line, and says what is wrong with any.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	wrong := false
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := parser.NewParser(parser.Options{}).ParseExpr(lines.Text()); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", lines.Text(), err)
			wrong = true
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		wrong = true
	}
	if wrong {
		os.Exit(1)
	}
}
