// Package tidy holds tests about the source itself: who may import whom, what
// a deterministic machine may use, how long files and functions may be, what
// must be documented, what lies at the top level, and which modules the server
// is built from.
//
// Each rule is a function from parsed files to breaches. The tests run it over
// the repository, and over small fixtures that break it, so that a rule which
// has stopped seeing anything is noticed. The package has no main: it is run
// as `go test ./cmd/tidy`.
package tidy
