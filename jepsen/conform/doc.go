// Package conform checks the behaviour that clients are promised, row by row:
// real nodes, the stock client, one subtest for each row of a test table.
//
// A row is run against a cluster that all rows share and nobody breaks, or,
// if it stops or kills nodes, against one of two of its own kind's. Names of queues,
// exchanges and policies begin with the row's id, so rows run side by side.
//
// A row that fails on a machine that stalls is played again, at most twice: there, what a row does may take longer than what
// it waits for. The log says what each play has found, and the last one decides.
//
// With -short, rows that wait for more than a second or two are skipped, and all that stop
// or kill nodes.
//
// docs/evidence/conformance.md lists the rows. `go test ./jepsen/conform -run
// TestTable -rewrite` writes it; TestTable fails when it is not up to date.
package conform
