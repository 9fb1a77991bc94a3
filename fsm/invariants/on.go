//go:build invariants

package invariants

// Enabled says whether assertions that cost more than the work they watch run.
const Enabled = true
