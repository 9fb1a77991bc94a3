package peer

import "testing"

// refuse makes an address refuse connections, and breaks those from a node.
// The process behind it lives on. It returns what undoes that.
func (n *network) refuse(addr, from string) (restore func()) {
	n.mu.Lock()
	l := n.listeners[addr]
	delete(n.listeners, addr)
	n.mu.Unlock()
	n.cut(from, addr)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.listeners[addr] = l
	}
}

// That a node's host refuses connections is counted beyond the Down event; a stream
// from its process is a sign of life all the same.
func TestRefusalsAreEvidence(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	m := c.members["n1"]
	incarnation := c.configs["n2"].Incarnation
	mustEvent(t, m, isUp("n2"), "up")
	if m.RefusedFor("n2") != 0 || !m.Hears("n2", incarnation[:]) {
		t.Fatal("a node that is up is refused, or not heard")
	}
	if other := nextIncarnation(); m.Hears("n2", other[:]) || m.Hears("n9", incarnation[:]) {
		t.Error("heard a process that there is not")
	}

	back := c.net.refuse("n2", "n1")
	if ev := mustEvent(t, m, isDown("n2"), "down"); ev.Reason != Refused {
		t.Errorf("%+v", ev)
	}
	mustWait(t, func() bool { return m.RefusedFor("n2") >= 4*m.cfg.RefusedAfter }, "refusals are not counted beyond the Down event")
	mustWait(t, func() bool { return m.Hears("n2", incarnation[:]) }, "the stream that n2 has dialled is no sign of life")
	here := c.net.refuse("n1", "n2")
	mustWait(t, func() bool { return !m.Hears("n2", incarnation[:]) }, "heard without a stream")
	if m.RefusedFor("n2") == 0 {
		t.Error("refusals are forgotten")
	}

	here()
	back()
	if ev := mustEvent(t, m, isUp("n2"), "up again"); ev.Incarnation != incarnation {
		t.Errorf("%+v", ev)
	}
	if m.RefusedFor("n2") != 0 || !m.Hears("n2", incarnation[:]) {
		t.Error("a node that is back is refused, or not heard")
	}
}
