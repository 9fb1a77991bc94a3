package catalog

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// String returns the view as stable text, one line per record.
func (v *View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "index %d clock %d next-node %d next-group %d initialized %v\n", v.index, v.clock, v.lastNode+1, max(v.nextGroup, 1), v.initialized)
	for _, n := range v.Nodes() {
		fmt.Fprintf(&b, "node %d %s peer=%s boot=%d incarnation=%q%s%s\n", n.Number, n.Name, n.PeerAddress, n.Boot, n.Incarnation,
			identityText(n)+versionsText(n), flags([]string{"draining", "dead"}, n.Draining, n.Dead))
	}
	for _, s := range v.settings {
		fmt.Fprintf(&b, "setting %s=%d\n", s.Name, s.Value)
	}
	for _, t := range v.tokens {
		fmt.Fprintf(&b, "join-token %x expires=%d node=%q used-by=%q\n", t.Hash[:4], t.Expires, t.Node, t.UsedBy)
	}
	for _, u := range v.Users() {
		fmt.Fprintf(&b, "user %s algorithm=%s tags=%v\n", u.Name, u.HashAlgorithm, u.Tags)
	}
	for _, p := range v.Permissions() {
		fmt.Fprintf(&b, "permission %s in %s configure=%q write=%q read=%q\n", p.User, p.VHost, p.Configure, p.Write, p.Read)
	}
	for _, p := range v.TopicPermissions() {
		fmt.Fprintf(&b, "topic-permission %s in %s at %q write=%q read=%q\n", p.User, p.VHost, p.Exchange, p.Write, p.Read)
	}
	for _, m := range append(v.Limits(false), v.Limits(true)...) {
		fmt.Fprintf(&b, "limit %s=%d of %s%s\n", m.Name, m.Value, m.Of, flags([]string{"user"}, m.User))
	}
	for _, row := range v.VHosts() {
		fmt.Fprintf(&b, "vhost %s description=%q tags=%v\n", row.Name, row.Description, row.Tags)
		for _, p := range v.policyRows([]*logpb.PutVhost{row}) {
			b.WriteString("  " + newPolicy(p).line() + "\n")
		}
		for _, x := range v.Exchanges(row.Name) {
			b.WriteString("  " + x.line() + v.activeText(x) + "\n")
		}
		for _, q := range v.QueuesOf(row.Name) {
			b.WriteString("  " + q.line() + v.placed.At(q.ID).line() + v.match(q).line() + "\n")
		}
		for _, bound := range v.Bindings(row.Name) {
			b.WriteString("  " + bound.line() + "\n")
		}
	}
	return b.String()
}

// versionsText shows what a node has announced, if that is not version 1.
func versionsText(n *logpb.NodeState) string {
	if s := fsm.Announced(n); s != (fsm.Versions{Oldest: 1, Newest: 1}) {
		return fmt.Sprintf(" versions=%q", s)
	}
	return ""
}

func identityText(n *logpb.NodeState) string {
	if len(n.GetIdentity()) == 0 {
		return ""
	}
	return fmt.Sprintf(" identity=%q", n.GetIdentity())
}

func (v *View) activeText(x *Exchange) string {
	if x.idle == 0 {
		return ""
	}
	return fmt.Sprintf(" idle=%d active=%d", x.idle, v.vhosts.At(x.VHost).active.At(x.Name))
}

// line follows that of a queue. It is empty while the members are those of the
// declaration.
func (p placement) line() string {
	if len(p.members) == 0 {
		return ""
	}
	line := fmt.Sprintf(" now=%v leaving=%v size=%d", p.members, p.leaving, p.size)
	if p.founder != 0 {
		line += fmt.Sprintf(" founder=%d", p.founder)
	}
	return line
}

// flags joins the names of those flags that are set, each after a blank.
func flags(names []string, set ...bool) string {
	text := ""
	for i, name := range names {
		if set[i] {
			text += " " + name
		}
	}
	return text
}

func (x *Exchange) line() string {
	text := fmt.Sprintf("exchange %s %s", x.Name, x.DeclaredType())
	text += flags([]string{"durable", "auto-delete", "internal"}, x.Durable, x.AutoDelete, x.Internal)
	if len(x.Arguments.GetFields()) > 0 {
		text += " " + renderTable(x.Arguments)
	}
	return text + x.match.line()
}

func (p *Policy) line() string {
	kind := "policy"
	if p.Operator {
		kind = "operator-policy"
	}
	return fmt.Sprintf("%s %s pattern=%q apply-to=%s priority=%d %s", kind, p.Name, p.Pattern, p.ApplyTo, p.Priority, renderTable(p.Definition))
}

// line follows that of a queue or an exchange. It is empty without policies.
func (f policyMatch) line() string {
	text := ""
	if f.policy != nil {
		text += " policy=" + f.policy.Name
	}
	if f.operator != nil {
		text += " operator-policy=" + f.operator.Name
	}
	if f.revision != 0 {
		text += fmt.Sprintf(" revision=%d", f.revision)
	}
	return text
}

func (q *Queue) line() string {
	text := fmt.Sprintf("queue %s id=%d.%d group=%d members=%v", q.Name, q.ID>>16, q.ID&(maxCommands-1), q.Group, q.declaredMembers)
	text += flags([]string{"durable", "exclusive", "auto-delete", "local"}, q.Durable, q.Exclusive, q.AutoDelete, q.Local)
	if q.Exclusive {
		text += fmt.Sprintf(" owner=%d/%d/%d", q.Owner.Node, q.Owner.Boot, q.Owner.Connection)
	}
	if len(q.Arguments.GetFields()) > 0 {
		text += " " + renderTable(q.Arguments)
	}
	return text
}

func (b *Binding) line() string {
	kind := kindQueue
	if b.ToExchange {
		kind = kindExchange
	}
	text := fmt.Sprintf("binding %s -> %s %s key=%q", b.Source, kind, b.Destination, b.RoutingKey)
	if len(b.Arguments.GetFields()) > 0 {
		text += " " + renderTable(b.Arguments)
	}
	return text
}
