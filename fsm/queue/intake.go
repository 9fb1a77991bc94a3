package queue

// intake covers what leads to a ready message: publishes (enqueue.go), messages
// that become ready later (schedule.go) or again (retry.go), and messages that
// exceed the limits or are purged (limits.go, purge.go). It has rules but no
// state.
//
// It promises that, after each command, a queue that drops its head is within
// its limits unless NextDue returns WorkDue; that a refused message leaves
// nothing but the number of its command in its session; and that due work is
// done in the order of (instant, number).
type intake struct {
	*shared
	timers     *timers
	entries    *entries
	groups     *groups
	takers     *groupTakers
	messages   *messages
	aside      *aside
	ends       *ends
	members    *members
	seen       *seen
	outbox     *outbox
	consumers  *consumers
	lease      *lease
	deliveries *deliveries
}
