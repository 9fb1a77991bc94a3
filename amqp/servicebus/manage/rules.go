package manage

import (
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/topics"
)

// readRule reads a rule called name from its element.
func readRule(name string, e *element) (*entity.Rule, error) {
	r := &entity.Rule{Name: name}
	filter := e.child("Filter")
	switch kind := filter.kind(); kind {
	case "TrueFilter", "":
		r.True = true
	case "FalseFilter":
		r.False = true
	case "SqlFilter":
		r.SQL = readExpression(filter)
	case "CorrelationFilter":
		r.Correlation = readCorrelation(filter)
	default:
		return nil, &entity.Invalid{Field: "Filter", Text: "filters of the type " + kind + " are not known"}
	}
	action := e.child("Action")
	switch kind := action.kind(); kind {
	case "EmptyRuleAction", "":
	case "SqlRuleAction":
		r.Action = readExpression(action)
	default:
		return nil, &entity.Invalid{Field: "Action", Text: "actions of the type " + kind + " are not known"}
	}
	return r, checkRule(r)
}

// checkRule refuses what no rule can be, and expressions that cannot be read.
func checkRule(r *entity.Rule) error {
	err := r.Check()
	if err == nil {
		_, err = topics.Compile(r)
	}
	return err
}

func readExpression(e *element) *entity.Expression {
	text, _ := e.value("SqlExpression")
	return &entity.Expression{Text: text, Parameters: readProperties(e.child("Parameters"))}
}

func readProperties(e *element) (list []entity.Property) {
	if e == nil {
		return nil
	}
	for _, c := range e.children {
		key, _ := c.value("Key")
		p := entity.Property{Name: key, Value: entity.Value{Kind: entity.String}}
		if v := c.child("Value"); v != nil {
			p.Value.Text = v.text
			if kind := v.kind(); kind != "" {
				p.Value.Kind = entity.Kind(kind)
			}
		}
		list = append(list, p)
	}
	return list
}

// correlated are the elements of a correlation filter.
var correlated = []struct {
	name string
	of   func(*entity.CorrelationFilter) *string
}{
	{"CorrelationId", func(c *entity.CorrelationFilter) *string { return &c.CorrelationID }},
	{"MessageId", func(c *entity.CorrelationFilter) *string { return &c.MessageID }},
	{"To", func(c *entity.CorrelationFilter) *string { return &c.To }},
	{"ReplyTo", func(c *entity.CorrelationFilter) *string { return &c.ReplyTo }},
	{"Label", func(c *entity.CorrelationFilter) *string { return &c.Label }},
	{"SessionId", func(c *entity.CorrelationFilter) *string { return &c.SessionID }},
	{"ReplyToSessionId", func(c *entity.CorrelationFilter) *string { return &c.ReplyToSessionID }},
	{"ContentType", func(c *entity.CorrelationFilter) *string { return &c.ContentType }},
}

func readCorrelation(e *element) *entity.CorrelationFilter {
	c := &entity.CorrelationFilter{Properties: readProperties(e.child("Properties"))}
	for _, x := range correlated {
		*x.of(c), _ = e.value(x.name)
	}
	return c
}

// rule writes what an entry has of a rule.
func (d *document) rule(r *entity.Rule, created time.Time) {
	d.in(`RuleDescription xmlns="`+connectSpace+`" xmlns:i="`+instanceSpace+`"`, func() {
		switch {
		case r.SQL != nil:
			d.in(`Filter i:type="SqlFilter"`, func() { d.expression(r.SQL, true) })
		case r.Correlation != nil:
			d.in(`Filter i:type="CorrelationFilter"`, func() { d.correlation(r.Correlation) })
		case r.False:
			d.in(`Filter i:type="FalseFilter"`, func() { d.expression(&entity.Expression{Text: "1=0"}, true) })
		default:
			d.in(`Filter i:type="TrueFilter"`, func() { d.expression(&entity.Expression{Text: "1=1"}, true) })
		}
		if r.Action != nil {
			d.in(`Action i:type="SqlRuleAction"`, func() { d.expression(r.Action, true) })
		} else {
			d.WriteString(`<Action i:type="EmptyRuleAction"/>`)
		}
		d.leaf("CreatedAt", timeText(created))
		d.leaf("Name", r.Name)
	})
}

func (d *document) expression(e *entity.Expression, level bool) {
	d.leaf("SqlExpression", e.Text)
	if level {
		d.leaf("CompatibilityLevel", "20")
	}
	d.pairs("Parameters", e.Parameters)
}

func (d *document) correlation(c *entity.CorrelationFilter) {
	for _, x := range correlated {
		if text := *x.of(c); text != "" {
			d.leaf(x.name, text)
		}
	}
	d.pairs("Properties", c.Properties)
}

// pairs writes typed values. The prefix of a type has four characters, which clients cut off.
func (d *document) pairs(name string, list []entity.Property) {
	if len(list) == 0 {
		return
	}
	d.in(name, func() {
		for _, p := range list {
			d.in("KeyValueOfstringanyType", func() {
				d.leaf("Key", p.Name)
				d.leaf(`Value`+attribute("xmlns:d6p1", schemaSpace)+attribute("i:type", "d6p1:"+string(p.Value.Kind)), p.Value.Text)
			})
		}
	})
}
