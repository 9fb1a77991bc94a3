package manage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/entity"
)

// File is what a configuration file of the service's emulator asks for: entities, in
// the order in which they can be created, and the rules of subscriptions, by key.
type File struct {
	Entities []*entity.Description
	Rules    map[string][]*entity.Rule
}

// What the emulator has where nothing is said.
const (
	emulatorDeliveries = 3
	emulatorTTL        = entity.Hour
	emulatorHistory    = 20 * entity.Second
)

// asEmulator gives an entity of which nothing is said the emulator's defaults.
func asEmulator(d *entity.Description) {
	d.Common().DefaultMessageTimeToLive = emulatorTTL
	if x := d.Delivery(); x != nil {
		x.MaxDeliveryCount = emulatorDeliveries
	}
	if s := d.Store(); s != nil {
		s.DuplicateDetectionHistoryTimeWindow = emulatorHistory
	}
}

// ParseFile reads a file, which may have comments and commas too many. What is not said has the service's defaults, or
// the emulator's. A key that is not known is an error.
func ParseFile(text []byte, emulator bool) (*File, error) {
	var root any
	d := json.NewDecoder(bytes.NewReader(plainJSON(text)))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	f := &File{Rules: map[string][]*entity.Rule{}}
	p := &fileParser{file: f, emulator: emulator}
	user := p.object(node{value: root}, "UserConfig", "Namespaces", "Logging").key("UserConfig")
	namespaces := p.list(p.object(user, "Namespaces", "Logging").key("Namespaces"))
	if p.err == nil && len(namespaces) != 1 {
		p.fail(user, "there must be one namespace")
	}
	for _, n := range namespaces {
		n = p.object(n, "Name", "Queues", "Topics")
		for _, q := range p.list(n.key("Queues")) {
			p.queue(q)
		}
		for _, t := range p.list(n.key("Topics")) {
			p.topic(t)
		}
	}
	// A destination comes before what forwards to it.
	slices.SortStableFunc(f.Entities, func(a, b *entity.Description) int { return forwards(a) - forwards(b) })
	return f, p.err
}

func forwards(d *entity.Description) int {
	if x := d.Delivery(); x != nil && x.ForwardTo+x.ForwardDeadLetteredMessagesTo != "" {
		return 1
	}
	return 0
}

// plainJSON blanks comments, and commas before the end of a list or an object.
func plainJSON(text []byte) []byte {
	out, comma := slices.Clone(text), -1
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == '"':
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
			comma = -1
		case c == '/' && i+1 < len(out) && (out[i+1] == '/' || out[i+1] == '*'):
			end := "\n"
			if out[i+1] == '*' {
				end = "*/"
			}
			n := bytes.Index(out[i+2:], []byte(end))
			if n < 0 {
				n = len(out) - i - 2 - len(end)
			}
			for stop := min(i+2+n+len(end), len(out)); i < stop; i++ {
				out[i] = ' '
			}
			i--
		case c == ',':
			comma = i
		case (c == ']' || c == '}') && comma >= 0:
			out[comma] = ' '
			comma = -1
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			comma = -1
		}
	}
	return out
}

// node is a value with where it is.
type node struct {
	value any
	path  string
}

func (n node) key(name string) node {
	m, _ := n.value.(map[string]any)
	return node{m[name], strings.TrimPrefix(n.path+"."+name, ".")}
}

// word is a text; empty: it is none.
func (n node) word() string {
	s, _ := n.value.(string)
	return s
}

// fileParser reads a file. err is the first mistake.
type fileParser struct {
	file     *File
	emulator bool
	err      error
}

func (p *fileParser) fail(n node, format string, values ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%s: %s", n.path, fmt.Sprintf(format, values...))
	}
}

// object checks that a value is an object with no other keys than these, or missing.
func (p *fileParser) object(n node, keys ...string) node {
	m, ok := n.value.(map[string]any)
	if !ok && n.value != nil {
		p.fail(n, "it is not an object")
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(keys, key) {
			p.fail(n.key(key), "this key is not known")
		}
	}
	return n
}

func (p *fileParser) list(n node) (nodes []node) {
	values, ok := n.value.([]any)
	if !ok && n.value != nil {
		p.fail(n, "it is not a list")
	}
	for i, v := range values {
		nodes = append(nodes, node{v, fmt.Sprintf("%s[%d]", n.path, i)})
	}
	return nodes
}

// add reads the properties of an entity and keeps it.
func (p *fileParser) add(d *entity.Description, n node) {
	if err := entity.CheckPath(d.Path); err != nil {
		p.fail(n.key("Name"), "%s", err)
	}
	if p.emulator {
		asEmulator(d)
	}
	leaveSize(d)
	given, _ := n.key("Properties").value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := n.key("Properties").key(name)
		i := slices.IndexFunc(properties, func(x property) bool { return x.name == name && x.of(d) != nil })
		if i < 0 {
			p.fail(at, "this key is not known")
			continue
		}
		if err := set(properties[i].of(d), fmt.Sprint(given[name])); err != nil {
			p.fail(at, "%s", err)
		}
	}
	resolve(d)
	p.file.Entities = append(p.file.Entities, d)
}

func (p *fileParser) queue(n node) {
	p.object(n, "Name", "Properties")
	p.add(&entity.Description{Path: entity.Path{Name: n.key("Name").word()}, Queue: entity.NewQueue()}, n)
}

func (p *fileParser) topic(n node) {
	p.object(n, "Name", "Properties", "Subscriptions")
	name := n.key("Name").word()
	p.add(&entity.Description{Path: entity.Path{Name: name}, Topic: entity.NewTopic()}, n)
	for _, s := range p.list(n.key("Subscriptions")) {
		p.object(s, "Name", "Properties", "Rules")
		d := &entity.Description{Path: entity.Path{Name: name, Subscription: s.key("Name").word()}, Subscription: entity.NewSubscription()}
		if d.Path.Subscription == "" {
			p.fail(s, "a subscription has a name")
		}
		p.add(d, s)
		for _, r := range p.list(s.key("Rules")) {
			p.file.Rules[d.Path.Key()] = append(p.file.Rules[d.Path.Key()], p.rule(r))
		}
		if p.file.Rules[d.Path.Key()] == nil {
			p.file.Rules[d.Path.Key()] = []*entity.Rule{entity.NewRule(entity.DefaultRule)}
		}
	}
}

func (p *fileParser) rule(n node) *entity.Rule {
	p.object(n, "Name", "Properties")
	of := p.object(n.key("Properties"), "FilterType", "CorrelationFilter", "SqlFilter", "Action")
	r := &entity.Rule{Name: n.key("Name").word()}
	switch kind := of.key("FilterType").word(); kind {
	case "Sql":
		r.SQL = &entity.Expression{Text: p.object(of.key("SqlFilter"), "SqlExpression").key("SqlExpression").word()}
	case "Correlation":
		r.Correlation = p.correlation(of.key("CorrelationFilter"))
	default:
		p.fail(of.key("FilterType"), "it is neither Sql nor Correlation")
	}
	if action := p.object(of.key("Action"), "SqlExpression"); action.value != nil {
		r.Action = &entity.Expression{Text: action.key("SqlExpression").word()}
	}
	if err := checkRule(r); err != nil {
		p.fail(n, "%s", err)
	}
	return r
}

func (p *fileParser) correlation(n node) *entity.CorrelationFilter {
	c, keys := &entity.CorrelationFilter{}, []string{"Properties"}
	for _, x := range correlated {
		keys = append(keys, x.name)
		*x.of(c) = n.key(x.name).word()
	}
	p.object(n, keys...)
	given, _ := n.key("Properties").value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v := entity.Value{Kind: entity.String, Text: fmt.Sprint(given[name])}
		switch given[name].(type) {
		case json.Number:
			if v.Kind = entity.Long; strings.ContainsAny(v.Text, ".eE") {
				v.Kind = entity.Double
			}
		case bool:
			v.Kind = entity.Boolean
		}
		c.Properties = append(c.Properties, entity.Property{Name: name, Value: v})
	}
	return c
}
