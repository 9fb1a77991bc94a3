package rules

import (
	"strings"
)

// Fields are what a correlation filter compares; an empty text is not given.
type Fields struct {
	CorrelationID, MessageID, To, ReplyTo, Label, SessionID, ReplyToSessionID, ContentType string
	Properties                                                                             []Parameter
}

// Correlation is a filter that compares properties. It never changes.
type Correlation struct{ conditions []condition }

// condition says what a property is equal to: one of the service's, or an application property.
type condition struct {
	system property // 0: an application property
	name   []byte
	value  Value
}

// NewCorrelation returns the filter of what is given.
func NewCorrelation(f Fields) *Correlation {
	c := &Correlation{}
	for _, given := range []struct {
		system property
		text   string
	}{
		{correlationID, f.CorrelationID}, {messageID, f.MessageID}, {to, f.To}, {replyTo, f.ReplyTo}, {label, f.Label}, {sessionID, f.SessionID},
		{replyToSessionID, f.ReplyToSessionID}, {contentType, f.ContentType},
	} {
		if given.text != "" {
			c.conditions = append(c.conditions, condition{system: given.system, value: TextOf(given.text)})
		}
	}
	for _, p := range f.Properties {
		c.conditions = append(c.conditions, condition{name: []byte(p.Name), value: p.Value})
	}
	return c
}

// Match reports whether all that is given is equal: of one type, texts with case.
func (c *Correlation) Match(m *Message) bool {
	for _, one := range c.conditions {
		if !same(one.of(m), one.value) {
			return false
		}
	}
	return true
}

func (c condition) of(m *Message) Value {
	if c.system != 0 {
		return m.system(c.system)
	}
	if p := m.user(c.name); p != nil {
		return valueOf(p.value)
	}
	return Value{}
}

func same(a, b Value) bool {
	if a.kind == Unknown || a.kind == Other {
		return false
	}
	order, _, err := compare(a, b)
	return a.kind == b.kind && err == nil && order == 0
}

// Rule is a filter and perhaps an action, and never changes. A rule without filter takes every message.
type Rule struct {
	Name        string
	Filter      *Filter
	Correlation *Correlation
	Action      *Action
}

// Set are rules, each with what its owner knows it by. It finds those that match a message: correlation filters by an
// index, the others one after the other. It is not safe for concurrent use.
//
// Invariants: every entry is in one list, of entries or of the index, at its position; a correlation filter with conditions
// is in the list of one of them.
type Set[T comparable] struct {
	entries map[T]*entry[T]
	others  []*entry[T]              // without a condition that is indexed
	index   map[indexKey][]*entry[T] // by one condition each
	columns [viaPartitionKey + 1]int // how many entries are indexed by a property of the service
	scratch []byte                   // a name in lower case
	matches uint64                   // calls of Match
}

type entry[T comparable] struct {
	of   T
	rule *Rule
	key  indexKey // the zero one: it is in others
	at   int
	// matched is the call of Match that has found it: names of properties may differ by case alone.
	matched uint64
}

// indexKey is a property and its value.
type indexKey struct {
	system property
	name   string // in lower case
	kind   Kind
	n      int64
	text   string
}

// isZero reports whether k is that of no condition: those have a property.
func (k *indexKey) isZero() bool { return k.system == 0 && k.kind == Unknown }

func (c condition) key() indexKey {
	v := c.value
	if v.kind == Float && v.float() == 0 {
		v = FloatOf(0) // there are two
	}
	return indexKey{c.system, strings.ToLower(string(c.name)), v.kind, v.n, string(v.text)}
}

// NewSet returns an empty set.
func NewSet[T comparable]() *Set[T] {
	return &Set[T]{entries: map[T]*entry[T]{}, index: map[indexKey][]*entry[T]{}}
}

// Len is the number of rules.
func (s *Set[T]) Len() int { return len(s.entries) }

// Has reports whether a rule is in the set.
func (s *Set[T]) Has(of T) bool { return s.entries[of] != nil }

// Add adds a rule, or replaces the one that its owner knows so. A correlation filter is found by the condition that the
// fewest others are found by.
func (s *Set[T]) Add(of T, r *Rule) {
	s.Remove(of)
	e := &entry[T]{of: of, rule: r}
	s.entries[of] = e
	if r.Filter == nil && r.Correlation != nil {
		for _, c := range r.Correlation.conditions {
			if k := c.key(); k.kind != Unknown && (e.key.isZero() || len(s.index[k]) < len(s.index[e.key])) {
				e.key = k
			}
		}
	}
	if e.key.isZero() {
		e.at, s.others = len(s.others), append(s.others, e)
		return
	}
	list := s.index[e.key]
	e.at, s.index[e.key] = len(list), append(list, e)
	s.columns[e.key.system]++
}

// Remove removes a rule, if it is there.
func (s *Set[T]) Remove(of T) {
	e := s.entries[of]
	if e == nil {
		return
	}
	delete(s.entries, of)
	if e.key.isZero() {
		s.others = without(s.others, e.at)
		return
	}
	s.columns[e.key.system]--
	if left := without(s.index[e.key], e.at); len(left) > 0 {
		s.index[e.key] = left
	} else {
		delete(s.index, e.key)
	}
}

// without puts the last entry in the place of one.
func without[T comparable](list []*entry[T], at int) []*entry[T] {
	last := len(list) - 1
	list[at] = list[last]
	list[at].at = at
	list[last] = nil
	return list[:last]
}

// All gives all rules, in no order.
func (s *Set[T]) All(yield func(T, *Rule) bool) {
	for of, e := range s.entries {
		if !yield(of, e.rule) {
			return
		}
	}
}

// Match calls found with each rule that matches, in no order, and with each that cannot be evaluated, with the error.
func (s *Set[T]) Match(m *Message, found func(of T, r *Rule, err error)) {
	s.matches++
	for _, e := range s.others {
		ok, err := e.rule.match(m)
		if ok || err != nil {
			found(e.of, e.rule, err)
		}
	}
	for p, n := range s.columns {
		if n > 0 && p > 0 {
			s.indexed(m, property(p), nil, m.system(property(p)), found)
		}
	}
	if s.columns[0] == 0 {
		return
	}
	for _, p := range m.application {
		s.scratch = appendLower(s.scratch[:0], p.name)
		s.indexed(m, 0, s.scratch, valueOf(p.value), found)
	}
}

func (r *Rule) match(m *Message) (bool, error) {
	switch {
	case r.Filter != nil:
		return r.Filter.Match(m)
	case r.Correlation != nil:
		return r.Correlation.Match(m), nil
	}
	return true, nil
}

// indexed checks the rules that are found by a property.
func (s *Set[T]) indexed(m *Message, p property, name []byte, v Value, found func(of T, r *Rule, err error)) {
	if v.kind == Float && v.float() == 0 {
		v = FloatOf(0)
	}
	for _, e := range s.index[indexKey{p, string(name), v.kind, v.n, string(v.text)}] {
		if e.matched != s.matches && e.rule.Correlation.Match(m) {
			e.matched = s.matches
			found(e.of, e.rule, nil)
		}
	}
}

// appendLower appends a name in lower case.
func appendLower(dst, name []byte) []byte {
	for _, c := range name {
		if c >= 0x80 {
			return append(dst[:0], strings.ToLower(string(name))...)
		}
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}
