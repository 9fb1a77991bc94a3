package queue

// intake is what leads to a ready message: publishes (enqueue.go), what becomes
// ready later (schedule.go), or again (retry.go), and what has no place in the
// queue, or is purged (limits.go, purge.go). It holds no state: rules only.
//
// It promises that, when a command is over, a queue that drops is within its
// limits unless WorkDue says that it is not; that what it refuses leaves nothing
// but the number of its command in its session; and that what is due is worked
// off in the order of (instant, number).
type intake struct {
	*shared
	timers     *timers
	entries    *entries
	messages   *messages
	outbox     *outbox
	consumers  *consumers
	lease      *lease
	deliveries *deliveries
}
