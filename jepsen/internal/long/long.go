// Package long marks tests that take long, which `make test` leaves to `make test-cluster`.
package long

import "testing"

// Test skips a test that takes long if the short ones are asked for.
func Test(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: runs with make test-cluster")
	}
}
