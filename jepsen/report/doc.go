// Package report turns the history of a run into a report: JSON with everything, an SVG
// with the timeline, and an HTML page that contains both for readers. It consists of
// pure functions; the same run gives the same bytes.
//
// A report does not evaluate anything: it has the verdicts of checkers, and says for
// each promise which of its checkers have run. A promise that no checker has tried is
// reported as that, not as kept.
package report
