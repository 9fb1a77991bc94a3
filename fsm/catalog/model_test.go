package catalog

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// model is a vhost done naively: lists, and walks over all of them. It knows
// what the commands of the property test do, and nothing about how.
type model struct {
	exchanges map[string]*logpb.DeclareExchange
	queues    map[string]*logpb.DeclareQueue
	bindings  []*logpb.Bind
	settings  map[string]int64
	draining  bool // the node
	dead      bool // the boot of node m
	// m is the second node's newest process; nil: there is none yet.
	m              *logpb.RegisterNode
	index, started uint64 // of the entry, and of the one that registered m
	clock          int64
	active         map[string]int64 // last use of every exchange
	maxQueues      int64            // queues; negative: no limit
	limited        bool             // it was given
	performed      map[uint64]bool  // proposals of node n that were
	from           uint64           // the least that it waits for
}

// repeats reports whether an entry is not performed, as its proposal was already or is too old.
func (m *model) repeats(p *logpb.Proposal) bool {
	if p == nil {
		return false
	}
	if p.Number < m.from || m.performed[p.Number] {
		return true
	}
	m.performed[p.Number], m.from = true, max(m.from, p.From)
	return false
}

func newModel() *model {
	m := &model{
		exchanges: map[string]*logpb.DeclareExchange{}, queues: map[string]*logpb.DeclareQueue{},
		settings: map[string]int64{FSMVersion: 1}, active: map[string]int64{}, performed: map[uint64]bool{},
	}
	for _, x := range predeclared {
		m.exchanges[x.Name] = x
	}
	return m
}

// fields returns the arguments in an order and form that equal ones share.
func fields(t *fsm.Table) string {
	var parts []string
	for _, f := range t.GetFields() {
		parts = append(parts, f.Name+"="+f.Value.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func (m *model) indexOf(b *logpb.Bind) int {
	return slices.IndexFunc(m.bindings, func(o *logpb.Bind) bool {
		return o.Source == b.Source && o.Destination == b.Destination && o.ToExchange == b.ToExchange &&
			o.RoutingKey == b.RoutingKey && fields(o.Arguments) == fields(b.Arguments)
	})
}

// bind reports whether there is a new binding.
func (m *model) bind(b *logpb.Bind) bool {
	_, isExchange := m.exchanges[b.Destination]
	_, isQueue := m.queues[b.Destination]
	x := m.exchanges[b.Source]
	switch {
	case x == nil, b.ToExchange && !isExchange, !b.ToExchange && !isQueue, m.indexOf(b) >= 0:
		return false
	case x.Type == Topic && strings.Count("."+b.RoutingKey+".", ".#.")+strings.Count("."+b.RoutingKey+".", ".#.#.") > 2:
		return false
	case x.Type == ConsistentHash && b.RoutingKey != "1" && b.RoutingKey != "5":
		return false
	}
	m.bindings = append(m.bindings, b)
	m.use(b)
	return true
}

// use notes what a binding that is made or removed makes use of.
func (m *model) use(b *logpb.Bind) {
	m.active[b.Source] = m.clock
	if b.ToExchange {
		m.active[b.Destination] = m.clock
		return
	}
	for _, o := range m.bindings {
		if !o.ToExchange && o.Destination == b.Destination {
			m.active[o.Source] = m.clock
		}
	}
}

func (m *model) idle(name string) int64 {
	if x := m.exchanges[name]; x != nil {
		return lookup(x.Arguments, idleArgument).GetInt()
	}
	return 0
}

func (m *model) touch(name string, at int64) bool {
	at = min(at, m.clock)
	if m.idle(name) == 0 || at <= m.active[name] {
		return false
	}
	m.active[name] = at
	return true
}

func (m *model) expire(name string, at int64) bool {
	idle := m.idle(name)
	if idle == 0 || m.active[name]+idle+idle/10 > min(at, m.clock) {
		return false
	}
	delete(m.exchanges, name)
	m.sweep(map[string]bool{})
	return true
}

func (m *model) unbind(b *logpb.Bind) bool {
	i := m.indexOf(b)
	if i < 0 {
		return false
	}
	m.use(b)
	m.bindings = slices.Delete(m.bindings, i, i+1)
	m.sweep(map[string]bool{b.Source: true})
	return true
}

// sweep removes what has lost its ends. had are the exchanges that had a
// binding as a source before.
func (m *model) sweep(had map[string]bool) {
	for changed := true; changed; {
		changed = false
		m.bindings = slices.DeleteFunc(m.bindings, func(b *logpb.Bind) bool {
			_, source := m.exchanges[b.Source]
			_, toQueue := m.queues[b.Destination]
			_, toExchange := m.exchanges[b.Destination]
			if source && (b.ToExchange && toExchange || !b.ToExchange && toQueue) {
				return false
			}
			had[b.Source], changed = true, true
			return true
		})
		for name := range had {
			x := m.exchanges[name]
			used := slices.ContainsFunc(m.bindings, func(b *logpb.Bind) bool { return b.Source == name })
			if x != nil && x.AutoDelete && !used {
				delete(m.exchanges, name)
				changed = true
			}
		}
	}
}

func (m *model) deleteExchange(d *logpb.DeleteExchange) bool {
	used := slices.ContainsFunc(m.bindings, func(b *logpb.Bind) bool { return b.Source == d.Name })
	if m.exchanges[d.Name] == nil || strings.HasPrefix(d.Name, "amq.") || d.IfUnused && used {
		return false
	}
	delete(m.exchanges, d.Name)
	m.sweep(map[string]bool{})
	return true
}

func (m *model) deleteQueues(which func(*logpb.DeclareQueue) bool) (deleted int) {
	for name, q := range m.queues {
		if which(q) {
			for _, b := range m.bindings {
				if !b.ToExchange && b.Destination == name {
					m.active[b.Source] = m.clock
				}
			}
			delete(m.queues, name)
			deleted++
		}
	}
	m.sweep(map[string]bool{})
	return deleted
}

// putSetting: the values drawn are allowed from 0, or from 10.
func (m *model) putSetting(s *logpb.PutSetting) bool {
	low := map[string]int64{LockCredit: 0, MaxClockSkew: 10}
	value, given := m.settings[s.Name]
	least, known := low[s.Name]
	switch {
	case !known, !s.Unset && s.Value < least, s.Unset && !given, !s.Unset && given && value == s.Value:
		return false
	case s.Unset:
		delete(m.settings, s.Name)
	default:
		m.settings[s.Name] = s.Value
	}
	return true
}

// raise: versions rise to what both nodes support; the first one supports 3.
func (m *model) raise(s *logpb.PutSetting) bool {
	common := int64(3)
	if m.m != nil {
		common = min(common, max(1, int64(m.m.NewestVersion)))
	}
	if s.Unset || s.Value <= m.settings[FSMVersion] || s.Value > common {
		return false
	}
	m.settings[FSMVersion] = s.Value
	return true
}

func (m *model) register(r *logpb.RegisterNode) bool {
	now := uint32(m.settings[FSMVersion])
	switch {
	case m.m != nil && (string(r.Incarnation) == string(m.m.Incarnation) && !m.dead || m.started == m.index):
		return false
	case now < max(1, r.OldestVersion), now > max(1, r.NewestVersion):
		return false
	}
	m.m, m.started, m.dead = r, m.index, false
	return true
}

// perform does one command and reports whether it changed anything.
func (m *model) perform(c *logpb.CatalogCommand) bool {
	switch b := c.Body.(type) {
	case *logpb.CatalogCommand_DeclareExchange:
		if m.exchanges[b.DeclareExchange.Name] != nil {
			return false
		}
		m.exchanges[b.DeclareExchange.Name], m.active[b.DeclareExchange.Name] = b.DeclareExchange, m.clock
		return true
	case *logpb.CatalogCommand_TouchExchange:
		return m.touch(b.TouchExchange.Name, b.TouchExchange.At)
	case *logpb.CatalogCommand_ExpireExchange:
		return m.expire(b.ExpireExchange.Name, b.ExpireExchange.At)
	case *logpb.CatalogCommand_DeleteExchange:
		return m.deleteExchange(b.DeleteExchange)
	case *logpb.CatalogCommand_DeclareQueue:
		if m.queues[b.DeclareQueue.Name] != nil || m.limited && m.maxQueues >= 0 && int64(len(m.queues)) >= m.maxQueues {
			return false
		}
		m.queues[b.DeclareQueue.Name] = b.DeclareQueue
		return true
	case *logpb.CatalogCommand_DeleteQueue:
		return m.deleteQueues(func(q *logpb.DeclareQueue) bool { return q.Name == b.DeleteQueue.Name }) > 0
	case *logpb.CatalogCommand_DeleteOwned:
		return m.deleteQueues(func(q *logpb.DeclareQueue) bool {
			return q.Exclusive && ownerFrom(q.Owner) == ownerFrom(b.DeleteOwned.Owner)
		}) > 0
	case *logpb.CatalogCommand_Bind:
		return m.bind(b.Bind)
	case *logpb.CatalogCommand_Unbind:
		return m.unbind(b.Unbind)
	case *logpb.CatalogCommand_PutLimit:
		old, given := m.maxQueues, m.limited
		m.maxQueues, m.limited = b.PutLimit.Value, !b.PutLimit.Unset
		return given != m.limited || given && old != m.maxQueues
	case *logpb.CatalogCommand_PutSetting:
		if b.PutSetting.Name == FSMVersion {
			return m.raise(b.PutSetting)
		}
		return m.putSetting(b.PutSetting)
	case *logpb.CatalogCommand_RegisterNode:
		return m.register(b.RegisterNode)
	case *logpb.CatalogCommand_DeclareDead:
		changed := m.m != nil && m.started == b.DeclareDead.Boot && !m.dead
		m.dead = m.dead || changed
		return changed
	case *logpb.CatalogCommand_SetDraining:
		changed := b.SetDraining.Name == "n" && b.SetDraining.Draining != m.draining
		m.draining = m.draining != changed
		return changed
	}
	return false
}

// matches decides for one binding.
func (m *model) matches(b *logpb.Bind, key string, headers map[string]string) bool {
	switch m.exchanges[b.Source].Type {
	case Direct:
		return b.RoutingKey == key
	case Topic:
		return naiveTopic(words(b.RoutingKey), words(key))
	case Headers:
		mode, hits, asked := "all", 0, 0
		for _, f := range b.Arguments.GetFields() {
			if f.Name == "x-match" {
				mode = string(f.Value.Str)
				continue
			}
			asked++
			if value, ok := headers[f.Name]; ok && (f.Value.Tag == 'V' || value == string(f.Value.Str)) {
				hits++
			}
		}
		return mode == "any" && hits > 0 || mode == "all" && hits == asked
	}
	return true
}

// chosen returns the one binding of an exchange that a message goes along, nil
// if there is none.
func (m *model) chosen(x *logpb.DeclareExchange, key string, headers map[string]string, chance uint64) *logpb.Bind {
	var from route.Rendezvous[*logpb.Bind]
	for _, b := range m.bindings {
		if local := b.ToExchange || isLocal(&Queue{Name: b.Destination}); b.Source != x.Name || x.Type == LocalRandom && !local {
			continue
		}
		kind, weight := "q", uint64(1)
		if b.ToExchange {
			kind = "x"
		}
		if x.Type == ConsistentHash {
			weight = uint64(b.RoutingKey[0] - '0')
		}
		from = from.With(kind+b.Destination, b, weight)
	}
	hash := route.HashString(key)
	if len(x.Arguments.GetFields()) > 0 && x.Arguments.Fields[0].Name == hashHeader {
		hash = route.HashString(headers["h1"])
	}
	var b *logpb.Bind
	switch x.Type {
	case ConsistentHash:
		b, _ = from.Pick(hash)
	case ModulusHash:
		b, _ = from.At(hash)
	default:
		b, _ = from.At(chance ^ route.HashString(x.Name))
	}
	return b
}

func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

func naiveTopic(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return naiveTopic(pattern[1:], key) || len(key) > 0 && naiveTopic(pattern, key[1:])
	}
	return len(key) > 0 && (pattern[0] == "*" || pattern[0] == key[0]) && naiveTopic(pattern[1:], key[1:])
}

// route returns the names of the queues, sorted.
func (m *model) route(exchange, key string, headers map[string]string, chance uint64) []string {
	found, seen := map[string]bool{}, map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		x := m.exchanges[name]
		if seen[name] {
			return
		}
		seen[name] = true
		if name == "" && m.queues[key] != nil {
			found[key] = true
		}
		if x == nil {
			return
		}
		hit := false
		var only *logpb.Bind
		one := slices.Contains([]string{ConsistentHash, ModulusHash, Random, LocalRandom}, x.Type)
		if one {
			only = m.chosen(x, key, headers, chance)
		}
		for _, b := range m.bindings {
			if b.Source != name || one && b != only || !one && !m.matches(b, key, headers) {
				continue
			}
			hit = true
			if b.ToExchange {
				visit(b.Destination)
			} else {
				found[b.Destination] = true
			}
		}
		if alternate, ok := text(lookup(x.Arguments, "alternate-exchange")); ok && !hit {
			visit(alternate)
		}
	}
	visit(exchange)
	names := []string{}
	for name := range found {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare)
	return names
}
