package queue

// retry makes message h, which was delayed, the last one of the returned.
// Requires: place Delayed. It keeps its number and its counts of deliveries. If
// it has expired meanwhile it is due at once.
func (it *intake) retry(h uint32) {
	it.messages.undelay(h)
	it.messages.returnLast(h)
	it.messages.watch(h)
}
