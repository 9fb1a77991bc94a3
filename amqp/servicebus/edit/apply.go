package edit

import "github.com/quorate/quorate/amqp/v10/wire"

// Apply returns the properties and application properties of a message after the edit, encoded as sections and appended to
// dst. What follows them in a bare message, its body and footer, Rest returns. The error is that of properties that cannot
// be read.
func (e Edit) Apply(dst []byte, m *wire.Message) ([]byte, error) {
	dst, err := e.properties(dst, m)
	if err != nil {
		return dst, err
	}
	return e.application(dst, m.ApplicationProperties), nil
}

// Rest returns what edits leave as it is: the body and the footer.
func Rest(m *wire.Message) []byte {
	return m.Bare[len(m.Bare)-len(m.Body)-len(m.Footer):]
}

func (e Edit) properties(dst []byte, m *wire.Message) ([]byte, error) {
	var p wire.Properties
	changed := false
	for _, c := range e.changes {
		if c.field == Application {
			continue
		}
		if !changed {
			if err := m.ReadProperties(&p); err != nil {
				return dst, err
			}
			changed = true
		}
		setField(&p, c.field, c.value)
	}
	if !changed {
		return append(dst, m.Properties...), nil
	}
	return wire.Append(dst, &p), nil
}

// setField sets a property to a value that fits it; empty: it is removed.
func setField(p *wire.Properties, f Field, value wire.RawValue) {
	var text []byte
	if f != MessageID && f != CorrelationID && len(value) > 0 {
		if text = value.Value().Bytes(); text == nil {
			text = []byte{}
		}
	}
	switch f {
	case MessageID:
		p.MessageID = value
	case To:
		p.To = text
	case Subject:
		p.Subject = text
	case ReplyTo:
		p.ReplyTo = text
	case CorrelationID:
		p.CorrelationID = value
	case ContentType:
		p.ContentType = text
	case GroupID:
		p.GroupID = text
	case ReplyToGroupID:
		p.ReplyToGroupID = text
	}
}

// application appends the application properties: those of the message in their order, then new ones.
func (e Edit) application(dst []byte, m wire.MapBytes) []byte {
	start, pairs := len(dst), 0
	dst = wire.StartApplicationProperties(dst)
	at := len(dst)
	dst = wire.StartMap(dst)
	for w := m.Walk(); w.NextPair(); {
		if e.find(Application, string(w.Key.Bytes())) < 0 {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	for _, c := range e.changes {
		if c.field == Application && len(c.value) > 0 {
			dst = append(wire.AppendString(dst, c.name), c.value...)
			pairs++
		}
	}
	if pairs == 0 {
		return dst[:start]
	}
	return wire.EndMap(dst, at, pairs)
}
