package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// String returns the view as stable text, one line per record.
func (v *View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "index %d clock %d next-node %d next-group %d initialized %v\n", v.index, v.clock, v.nextNumber(), v.firstGroup(), v.initialized)
	v.nodes.describe(&b)
	v.clusterSettings.describe(&b)
	v.joinTokens.describe(&b)
	v.lockKey.describe(&b)
	v.globals.describe(&b)
	v.users.describe(&b)
	v.proposals.describe(&b)
	for _, p := range v.Permissions() {
		fmt.Fprintf(&b, "permission %s in %s configure=%q write=%q read=%q\n", p.User, p.VHost, p.Configure, p.Write, p.Read)
	}
	for _, p := range v.TopicPermissions() {
		fmt.Fprintf(&b, "topic-permission %s in %s at %q write=%q read=%q\n", p.User, p.VHost, p.Exchange, p.Write, p.Read)
	}
	v.limits.describe(&b)
	for _, row := range v.VHosts() {
		v.vhost(row.GetName()).describe(&b, &v.placements)
	}
	return b.String()
}

// describe writes a vhost and what is in it.
func (vh *vhost) describe(b *strings.Builder, all *placements) {
	fmt.Fprintf(b, "vhost %s description=%q tags=%v", vh.row.Name, vh.row.Description, vh.row.Tags)
	if kind := vh.row.GetDefaultQueueType(); kind != "" {
		fmt.Fprintf(b, " default-queue-type=%s", kind)
	}
	if vh.row.Protected {
		b.WriteString(" protected")
	}
	b.WriteByte('\n')
	for _, p := range append(slices.Clone(vh.policies.list(false)), vh.policies.list(true)...) {
		b.WriteString("  " + p.line() + "\n")
	}
	for _, x := range vh.exchanges.list() {
		b.WriteString("  " + x.line() + vh.exchanges.useText(x) + "\n")
	}
	for _, q := range sorted(vh.queues, func(a, b *Queue) int { return cmp.Compare(a.Name, b.Name) }) {
		b.WriteString("  " + q.line() + all.line(q) + vh.policies.of(q).line() + "\n")
	}
	for _, x := range vh.exchanges.list() {
		for _, bound := range sorted(x.bindings, compareBindings) {
			b.WriteString("  " + bound.line() + "\n")
		}
	}
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

func (xs *exchanges) useText(x *Exchange) string {
	if x.idle == 0 {
		return ""
	}
	last, _ := xs.lastUsed(x.Name)
	return fmt.Sprintf(" idle=%d active=%d", x.idle, last)
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
	dialect := ""
	if p.row.GetDialect() != dialectRE2 {
		dialect = fmt.Sprintf("dialect=%d ", p.row.GetDialect())
	}
	return fmt.Sprintf("%s %s pattern=%q apply-to=%s priority=%d %s%s", kind, p.Name, p.Pattern, p.ApplyTo, p.Priority, dialect, renderTable(p.Definition))
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
	text += flags([]string{"durable", "exclusive", "auto-delete", "local", "classic"}, q.Durable, q.Exclusive, q.AutoDelete, q.Local, q.Classic)
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
