// Package tidy tests the source itself: which packages may import each other, what a
// deterministic machine may use, how long files and functions may be, what must be
// documented, what may be at the top level, and which modules the server is built
// from.
//
// Each rule is a function from parsed files to breaches. The tests run it over the
// repository, and over small fixtures that break it, so that a rule that no longer
// finds anything is noticed. The package has no main; run it with
// `go test ./cmd/tidy`.
package tidy
