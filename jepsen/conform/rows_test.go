package conform

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

var rewrite = flag.Bool("rewrite", false, "TestTable writes docs/evidence/conformance.md")

// tableFile lists all rows, for users.
const tableFile = "../../docs/evidence/conformance.md"

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
	// long rows wait for more than a second or two.
	long bool
	// peer is what RabbitMQ 4.3.6 does instead, and why says why that differs; empty: it does the same,
	// or the row is not about what it has.
	peer, why string
	// test runs the row if the suite's does not, and it holds: "package: Test, Test/part;
	// package: Test", with packages by their folders.
	test string
}

// suite is a table of rows.
type suite struct {
	test  string // the Go test that runs it
	title string
	rows  []row
	// rough rows stop or kill nodes: one at a time, on clusters of their own. All of them are long.
	rough bool
}

// suites are all tables, in the order of the document.
var suites = []*suite{
	&amqpRows, &amqp10Rows, &amqp10KillRows, &ttlRows, &leaseRows, &deadRows, &policyRows, &limitRows, &headRows, &holdRows, &delayRows, &keepRows, &idleRows,
	&scheduleRows, &clockRows, &orderRows, &forwardRows, &prefetchRows,
	&deliveryRows, &ageRows, &pauseRows, &willRows, &prefetchLimitRows, &dispatchRows, &takeRows, &parkedRows, &retryRows, &timeoutRows, &lockRows, &groupRows, &commandRows, &argumentRows, &redeclareRows, &typeRows, &localRows, &memberRows, &roughRows, &allStopRows, &localRoughRows, &explainRows, &verifyRows, &trafficRows, &fileRows, &clusterRows,
}

// clustersOfRough is how many clusters share the rows of a rough suite.
const clustersOfRough = 2

// run runs a suite's rows, side by side with those of all suites unless they are
// rough: then one after the other on each of their clusters, beside the rest. Rows
// mostly wait.
func (s *suite) run(t *testing.T) {
	if !slices.Contains(suites, s) {
		t.Error("the table has none of these rows")
	}
	if s.rough {
		long.Test(t)
	}
	t.Parallel()
	if !s.rough {
		for _, r := range s.rows {
			s.try(t, r, shared.mustGet(t))
		}
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for first := range clustersOfRough {
		c := mustCluster(t, cluster.WrongClocks...)
		all.Go(func() {
			for i := first; i < len(s.rows); i += clustersOfRough {
				s.try(t, s.rows[i], c)
			}
		})
	}
}

// try runs a row against a cluster.
func (s *suite) try(t *testing.T, r row, c *cluster.Cluster) {
	if r.run == nil {
		return
	}
	t.Run(r.id, func(t *testing.T) {
		if r.long {
			long.Test(t)
		}
		if !s.rough {
			t.Parallel()
		}
		for n := 1; ; n++ {
			id := r.id
			if *peerAMQP != "" {
				id += peerRun
			}
			if n > 1 {
				id += fmt.Sprint("-", n)
			}
			one := newT(t, c, id)
			if s.rough {
				one.extra = electing
			}
			said := one.play(func(t *T) {
				r.run(t)
				if t.timed && !t.bounded && !r.lives {
					t.Error("something is due while the row runs, and may be as late as it likes")
				}
			}, n-1)
			if said == "" {
				return
			}
			if stalls := machine.Longest(one.began); n < plays && stalls > tooSlow {
				t.Logf("played again, since the machine stalls for %v; play %d failed:\n%s", stalls, n, said)
				continue
			}
			t.Fatal(said)
		}
	})
}

// TestTable holds docs/evidence/conformance.md to the rows that are run.
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
		"Each row is a test that `make test-cluster` runs against three real nodes with the stock client\n" +
		"amqp091-go; `make test` runs those that wait for at most a second or two. `go test ./jepsen/conform -run '^TEST$/^ROW$'` runs a single row, unless\n" +
		"the row names a test of another package. \"holds\" means that the test passes; if a row does not hold as first written, or not yet, the last column says why.\n\n" +
		"This page is generated by `go test ./jepsen/conform -run TestTable -rewrite`.\n")
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
	b.WriteString("\n## Where AMQP 1.0 differs from RabbitMQ\n\n" +
		"What RabbitMQ 4.3.6 does instead is held by the same rows, run with `-amqp10.rabbitmq` and `-amqp10.rabbitmq-http`.\n\n" +
		"| row | quorate | RabbitMQ 4.3.6 | reason |\n|---|---|---|---|\n")
	for _, r := range amqp10Rows.rows {
		if r.peer != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.id, cell(r.what), cell(r.peer), cell(r.why))
		}
	}
	return b.Bytes()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
