package queue

import ()

// retry makes message h, which was delayed, the last one of the returned.
func (m *Machine) retry(h uint32) {
	m.messages.undelay(h)
	m.messages.returnLast(h)
	m.messages.watch(h)
}
