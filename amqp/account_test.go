package amqp

import "testing"

// tree are the accounts of a node with connections of users, each with two parts.
type tree struct {
	users
	conns    map[string]*Account
	parts    map[string]*Account
	relieved []string
}

// newTree makes a connection for each name, of the user that its first letter is.
func newTree(connection, user, node int64, names ...string) *tree {
	x := &tree{users: newUsers(user, node), conns: map[string]*Account{}, parts: map[string]*Account{}}
	for _, name := range names {
		c := &Account{step: connectionStep, limit: connection, bound: boundConnection}
		x.join(name[:1], c)
		x.conns[name] = c
		for _, part := range []string{name + ".1", name + ".2"} {
			x.parts[part] = c.newPart(channelStep, func(*Account) bool {
				x.relieved = append(x.relieved, part)
				return true
			})
		}
	}
	return x
}

// take has a part take, and returns the bound that refuses it.
func (x *tree) take(part string, n int64) string {
	if over := x.parts[part].Take(n); over != nil {
		return over.bound
	}
	return ""
}

func (x *tree) expect(t *testing.T, relieved ...string) {
	t.Helper()
	if len(x.relieved) != len(relieved) || len(relieved) > 0 && x.relieved[0] != relieved[0] {
		t.Errorf("relieved are %q, want %q", x.relieved, relieved)
	}
	x.relieved = nil
}

// Sums reach the node in steps, and are 0 when all is given back and closed, in whatever order.
func TestAccountSums(t *testing.T) {
	x := newTree(1<<20, 1<<30, 1<<30, "a", "b")
	for i := range int64(100) {
		x.take("a.1", 1000)
		x.take("b.2", 3000)
		if i%3 == 0 {
			x.parts["b.2"].Add(-3000)
		}
	}
	node, exact := x.node.bytes.Load(), int64(100*1000+66*3000)
	if node > exact || node < exact-2*connectionStep {
		t.Errorf("the node has %d, %d is exact", node, exact)
	}
	if b := x.conns["b"].bytes.Load(); b > 66*3000 || b <= 66*3000-channelStep {
		t.Errorf("the connection has %d", b)
	}
	x.parts["a.1"].Add(-100_000)
	if len(x.list) != 2 {
		t.Errorf("%d users", len(x.list))
	}
	for _, name := range []string{"b", "a"} {
		for _, p := range []string{".1", ".2"} {
			x.parts[name+p].Close(false)
		}
		x.leave(name, x.conns[name], true)
	}
	if n := x.node.bytes.Load(); n != 0 || len(x.list) != 0 {
		t.Errorf("%d octets of %d users are left", n, len(x.list))
	}
	x.parts["b.2"].Add(-5) // late
	if n := x.node.bytes.Load(); n != 0 {
		t.Errorf("%d octets after a late release", n)
	}
}

// At each bound the part with most is relieved, or refused if it is the one that asks.
func TestAccountBounds(t *testing.T) {
	const mib = 1 << 20
	t.Run("connection", func(t *testing.T) {
		x := newTree(10*mib, 0, 0, "a")
		x.take("a.1", 8*mib)
		if got := x.take("a.1", 3*mib); got != boundConnection {
			t.Errorf("it may go beyond %q", got)
		}
		x.expect(t)
		if got := x.take("a.2", 3*mib); got != "" {
			t.Errorf("the other part is refused by %s", got)
		}
		x.expect(t, "a.1")
	})
	t.Run("user", func(t *testing.T) {
		x := newTree(100*mib, 20*mib, 0, "a1", "a2", "b")
		x.take("a1.1", 9*mib)
		x.take("a2.1", 10*mib)
		if got := x.take("b.1", 19*mib); got != "" {
			t.Errorf("another user is refused by %s", got)
		}
		x.expect(t)
		if got := x.take("a2.1", 2*mib); got != boundUser {
			t.Errorf("a2 is let by %q", got)
		}
		x.expect(t)
		if got := x.take("a1.2", 2*mib); got != "" {
			t.Errorf("a1 is refused by %s", got)
		}
		x.expect(t, "a1.1") // the connection has most by now
	})
	t.Run("node", func(t *testing.T) {
		x := newTree(100*mib, 100*mib, 50*mib, "a1", "a2", "b")
		x.take("a1.2", 20*mib)
		x.take("a2.2", 29*mib)
		if got := x.take("b.1", 15*mib); got != "" {
			t.Errorf("a neighbour is refused by %s", got)
		}
		x.expect(t, "a2.2")
		if got := x.take("a2.2", mib); got != boundNode {
			t.Errorf("the greediest is let by %q", got)
		}
	})
}

// If nobody can be relieved, one who holds more than a share is refused, and one who holds less is not.
func TestAccountFixed(t *testing.T) {
	const mib = 1 << 20
	x := newTree(100*mib, 100*mib, 50*mib, "a", "b")
	fixed := x.conns["a"].newPart(connectionStep, nil)
	fixed.Add(60 * mib)
	for _, p := range []string{"a.1", "a.2"} {
		x.parts[p].relieve = func(*Account) bool { return false }
	}
	if got := x.take("b.1", 10*mib); got != "" {
		t.Errorf("b is refused by %s", got)
	}
	if got := x.take("b.1", 20*mib); got != boundNode {
		t.Errorf("b may have more than half, %q", got)
	}
	if !fixed.isCrowded() || x.parts["b.1"].isCrowded() {
		t.Error("not only a's connection is to take in less")
	}
	fixed.Add(-30 * mib)
	if fixed.isCrowded() {
		t.Error("there is room")
	}
}
