// Package mutants holds deliberate bugs, and runs the tests against each of
// them: a bug that no test finds is a promise that nothing checks.
//
// list has the bugs, as changes of a text that occurs once in a file.
// TestListFits and TestListCompiles are fast and find entries that the source has left behind.
// TestMutants takes hours; see jepsen/README.md. It compiles each bug with an overlay
// of the changed file, so the source tree stays as it is and bugs run in
// parallel.
//
// Tools that change operators and constants everywhere are no replacement: they
// find code that no test runs, but not rules that no test knows. The bugs here
// are written by hand, one for each way in which a promise could break.
package mutants
