package mutants

import (
	"fmt"
	"slices"
	"strings"
)

// Table is the results as a table, the order of mutants kept; mutants without a
// result are left out.
func Table(all []Mutant, results map[string]Result) string {
	var b strings.Builder
	b.WriteString("| id | breaks | bug | result | by | s |\n|---|---|---|---|---|---|\n")
	for _, m := range all {
		r, ok := results[m.ID]
		if !ok {
			continue
		}
		outcome := string(r.Verdict)
		if r.How != None && r.How != Failure {
			outcome += ", " + string(r.How)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.0f |\n", m.ID, strings.Join(m.Breaks, " "), cell(m.Bug), outcome, cell(r.By), r.Seconds)
	}
	return b.String()
}

// cell is a text that does not break a table.
func cell(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.ReplaceAll(text, "|", "\\|")
}

// Summary counts verdicts in one line.
func Summary(results map[string]Result) string {
	count := map[Verdict]int{}
	for _, r := range results {
		count[r.Verdict]++
	}
	percent := 100 * count[Killed] / max(1, len(results))
	return fmt.Sprintf("%d mutants: %d killed (%d %%), %d survived, %d broken, %d unsound",
		len(results), count[Killed], percent, count[Survived], count[Broken], count[Unsound])
}

// Merge replaces the rows of results in a table that Table has made, and
// removes those of mutants that are no longer in the list.
func Merge(table string, all []Mutant, results map[string]Result) string {
	rows := map[string]string{}
	for _, t := range []string{table, Table(all, results)} {
		for line := range strings.Lines(t) {
			if cells := strings.Split(line, "|"); len(cells) > 2 {
				rows[strings.TrimSpace(cells[1])] = strings.TrimRight(line, "\n") + "\n"
			}
		}
	}
	var b strings.Builder
	b.WriteString(Table(nil, nil))
	for _, m := range all {
		b.WriteString(rows[m.ID])
	}
	return b.String()
}

// Missing returns the mutants of which a table has no row.
func Missing(table string, all []Mutant) []string {
	var ids []string
	for _, m := range all {
		if !strings.Contains(table, "\n| "+m.ID+" |") {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
