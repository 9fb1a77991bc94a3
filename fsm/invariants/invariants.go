// Package invariants holds what the machines use to assert about themselves.
// Cheap assertions are always on; those that walk a whole state run only in
// builds with the tag invariants.
package invariants

// Assert panics with what unless ok. It is for facts that no client and no
// log entry can break: only a defect of the program does.
func Assert(ok bool, what string) {
	if !ok {
		panic("broken invariant: " + what)
	}
}
