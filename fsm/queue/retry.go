package queue

// retry makes message h, which was delayed, the last one of the returned.
func (it *intake) retry(h uint32) {
	it.messages.undelay(h)
	it.messages.returnLast(h)
	it.messages.watch(h)
}
