package topics

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/rules"
)

// Compile makes a rule of its description. The error is for the author. Requires: it is not that of a filter that takes
// nothing, of which only the action counts.
func Compile(d *entity.Rule) (*rules.Rule, error) {
	r := &rules.Rule{Name: d.Name}
	switch {
	case d.SQL != nil:
		parameters, err := values(d.SQL.Parameters)
		if err == nil {
			r.Filter, err = rules.ParseFilter(d.SQL.Text, parameters)
		}
		if err != nil {
			return nil, &entity.Invalid{Field: "Filter", Text: err.Error()}
		}
	case d.Correlation != nil:
		c := d.Correlation
		properties, err := values(c.Properties)
		if err != nil {
			return nil, &entity.Invalid{Field: "Filter", Text: err.Error()}
		}
		r.Correlation = rules.NewCorrelation(rules.Fields{
			CorrelationID: c.CorrelationID, MessageID: c.MessageID, To: c.To, ReplyTo: c.ReplyTo, Label: c.Label,
			SessionID: c.SessionID, ReplyToSessionID: c.ReplyToSessionID, ContentType: c.ContentType, Properties: properties,
		})
	}
	if d.Action != nil {
		parameters, err := values(d.Action.Parameters)
		if err == nil {
			r.Action, err = rules.ParseAction(d.Action.Text, parameters)
		}
		if err != nil {
			return nil, &entity.Invalid{Field: "Action", Text: err.Error()}
		}
	}
	return r, nil
}

func values(properties []entity.Property) ([]rules.Parameter, error) {
	all := make([]rules.Parameter, len(properties))
	for i, p := range properties {
		v, err := value(p.Value)
		if err != nil {
			return nil, fmt.Errorf("the value of %s: %w", p.Name, err)
		}
		all[i] = rules.Parameter{Name: p.Name, Value: v}
	}
	return all, nil
}

// value reads a value in the form of XML.
func value(v entity.Value) (rules.Value, error) {
	text := strings.TrimSpace(v.Text)
	switch v.Kind {
	case entity.Int, entity.Long:
		n, err := strconv.ParseInt(text, 10, 64)
		return rules.IntOf(n), err
	case entity.Double, entity.Decimal:
		f, err := strconv.ParseFloat(text, 64)
		return rules.FloatOf(f), err
	case entity.Boolean:
		b, err := strconv.ParseBool(text)
		return rules.BoolOf(b), err
	case entity.DateTime:
		t, err := parseTime(text)
		return rules.TimeOf(t.UnixMilli()), err
	case entity.Span:
		d, err := entity.ParseDuration(text)
		return rules.DurationOf(int64(d)), err
	case entity.GUID:
		id, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(id) != 16 {
			return rules.Value{}, fmt.Errorf("%q is no UUID", text)
		}
		return rules.UUIDOf([16]byte(id)), nil
	case entity.String, "":
		return rules.TextOf(v.Text), nil
	}
	return rules.Value{}, fmt.Errorf("no value is of the type %q", v.Kind)
}

// parseTime reads a time, which is that of UTC unless it says otherwise.
func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t, err = time.Parse("2006-01-02T15:04:05.999999999", text)
	}
	return t, err
}
