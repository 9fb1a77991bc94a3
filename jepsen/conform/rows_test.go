package conform

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
)

var rewrite = flag.Bool("rewrite", false, "TestTable writes docs/conformance.md")

// tableFile lists all rows, for users.
const tableFile = "../../docs/conformance.md"

// row is one promise and its test.
type row struct {
	id   string
	what string
	run  func(*T)
	// in names another row of the suite whose test does this one, too.
	in string
	// but says what holds instead where the row cannot hold as it was written;
	// without run, why it does not hold yet.
	but string
	// lives says that what the row asks for at a time is not to happen in it,
	// or that it does not look: otherwise something must be bounded.
	lives bool
	// test runs the row if the suite's does not, and it holds.
	test string
}

// suite is a table of rows.
type suite struct {
	test  string // the Go test that runs it
	title string
	rows  []row
	// rough rows stop or kill nodes: one at a time, on a cluster of their own.
	rough bool
}

// suites are all tables, in the order of the document.
var suites = []*suite{
	&amqpRows, &ttlRows, &leaseRows, &deadRows, &policyRows, &limitRows, &headRows, &holdRows, &delayRows, &keepRows, &idleRows,
	&deliveryRows, &timeoutRows, &argumentRows, &localRows, &memberRows, &roughRows, &localRoughRows, &clusterRows,
}

// run runs a suite's rows, side by side with those of all suites unless they are
// rough: then one after the other, beside the rest. Rows mostly wait.
func (s *suite) run(t *testing.T) {
	t.Parallel()
	c := (*cluster.Cluster)(nil)
	if s.rough {
		c = mustCluster(t, cluster.WrongClocks...)
	} else {
		c = shared.mustGet(t)
	}
	for _, r := range s.rows {
		if r.run == nil {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			if !s.rough {
				t.Parallel()
			}
			one := newT(t, c, r.id)
			if s.rough {
				one.extra = electing
			}
			r.run(one)
			if one.timed && !one.bounded && !r.lives {
				t.Error("something is due while the row runs, and may be as late as it likes")
			}
		})
	}
}

// TestTable holds docs/conformance.md to the rows that are run.
func TestTable(t *testing.T) {
	want := table()
	if *rewrite {
		if err := os.WriteFile(tableFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not up to date: go test ./jepsen/conform -run TestTable -rewrite", tableFile)
	}
}

// TestRowsAreUnique: an id names one row.
func TestRowsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range suites {
		for _, r := range s.rows {
			if seen[r.id] {
				t.Errorf("row %s is there twice", r.id)
			}
			seen[r.id] = true
		}
	}
}

func table() []byte {
	var b bytes.Buffer
	b.WriteString("# Behaviour, row by row\n\n" +
		"Each row is a test that runs in `make test` against three real nodes with the stock client\n" +
		"amqp091-go. `go test ./jepsen/conform -run '^TEST$/^ROW$'` runs one, unless\n" +
		"the row names a test of another package. \"holds\" is the result of the test; where a row does not hold as first written, or not yet, the last column says so, and why.\n\n" +
		"This page is written by `go test ./jepsen/conform -run TestTable -rewrite`.\n")
	for _, s := range suites {
		fmt.Fprintf(&b, "\n## %s\n\n| row | what | test | result |\n|---|---|---|---|\n", s.title)
		for _, r := range s.rows {
			result, test := "holds", s.test+"/"+r.id
			switch {
			case r.in != "":
				test = s.test + "/" + r.in
			case r.test != "":
				test = r.test
			case r.run == nil:
				result, test = "not yet: "+r.but, "–"
			}
			if r.but != "" && test != "–" {
				result = "differs: " + r.but
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.id, cell(r.what), test, cell(result))
		}
	}
	return b.Bytes()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
