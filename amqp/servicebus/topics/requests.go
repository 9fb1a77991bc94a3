package topics

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// Names in the descriptions of rules that clients send.
const (
	keySQL         = "sql-filter"
	keyCorrelation = "correlation-filter"
	keyAction      = "sql-rule-action"
	keyExpression  = "expression"
	keyProperties  = "properties"
)

// everything is the text of the filter that takes all messages, as clients send it.
const everything = "1=1"

// ReadRule reads the description of a rule in a request. The error is for its author.
func ReadRule(name string, description wire.MapBytes) (*entity.Rule, error) {
	r := &entity.Rule{Name: name}
	sql, correlation := mapIn(description, keySQL), mapIn(description, keyCorrelation)
	switch {
	case sql != nil:
		text, _ := textIn(sql, keyExpression)
		if r.True = strings.ReplaceAll(text, " ", "") == everything; !r.True {
			r.SQL = &entity.Expression{Text: text}
		}
	case correlation != nil:
		r.Correlation = &entity.CorrelationFilter{}
		for key, to := range correlationTexts(r.Correlation) {
			*to, _ = textIn(correlation, key)
		}
		for w := mapIn(correlation, keyProperties).Walk(); w.NextPair(); {
			v, err := describedValue(w.Value)
			if err != nil {
				return nil, &entity.Invalid{Field: "Filter", Text: fmt.Sprintf("the property %s: %s", w.Key.Bytes(), err)}
			}
			r.Correlation.Properties = append(r.Correlation.Properties, entity.Property{Name: string(w.Key.Bytes()), Value: v})
		}
	default:
		return nil, &entity.Invalid{Field: "Filter", Text: "a rule has a filter"}
	}
	if action := mapIn(description, keyAction); action != nil {
		if text, ok := textIn(action, keyExpression); ok && text != "" {
			r.Action = &entity.Expression{Text: text}
		}
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	_, err := Compile(r)
	return r, err
}

// correlationTexts are the texts of a filter by their names.
func correlationTexts(c *entity.CorrelationFilter) map[string]*string {
	return map[string]*string{
		"correlation-id": &c.CorrelationID, "message-id": &c.MessageID, "to": &c.To, "reply-to": &c.ReplyTo, "label": &c.Label,
		"session-id": &c.SessionID, "reply-to-session-id": &c.ReplyToSessionID, "content-type": &c.ContentType,
	}
}

// mapIn returns the map that a key of a map has; nil: none.
func mapIn(m wire.MapBytes, key string) wire.MapBytes {
	for w := m.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) == key && w.Value.Type == wire.Map {
			return wire.MapBytes(w.Encoded)
		}
	}
	return nil
}

func textIn(m wire.MapBytes, key string) (string, bool) {
	v, ok := m.Get(key)
	if !ok || v.Type != wire.String && v.Type != wire.Symbol {
		return "", false
	}
	return string(v.Bytes()), true
}

// describedValue is a value that came from a client, as it is kept.
func describedValue(v wire.Value) (entity.Value, error) {
	if n, ok := v.Integer(); ok {
		kind := entity.Long
		if n == int64(int32(n)) {
			kind = entity.Int
		}
		return entity.Value{Kind: kind, Text: strconv.FormatInt(n, 10)}, nil
	}
	switch v.Type {
	case wire.String, wire.Symbol:
		return entity.Value{Kind: entity.String, Text: string(v.Bytes())}, nil
	case wire.Boolean:
		return entity.Value{Kind: entity.Boolean, Text: strconv.FormatBool(v.Bool())}, nil
	case wire.Float, wire.Double:
		return entity.Value{Kind: entity.Double, Text: strconv.FormatFloat(v.Float(), 'g', -1, 64)}, nil
	case wire.Timestamp:
		return entity.Value{Kind: entity.DateTime, Text: time.UnixMilli(v.Signed()).UTC().Format(time.RFC3339Nano)}, nil
	case wire.UUID:
		return entity.Value{Kind: entity.GUID, Text: hex.EncodeToString(v.Bytes())}, nil
	}
	return entity.Value{}, fmt.Errorf("no filter can have a value of this type")
}

// Descriptors of what describes a rule in an answer.
const (
	codeRule        = 0x13700000004
	codeSQL         = 0x1370000006
	codeTrue        = 0x1370000007
	codeFalse       = 0x1370000008
	codeCorrelation = 0x1370000009
	codeNoAction    = 0x13700000005
	codeAction      = 0x13700000006
)

// AppendRule appends the description of a rule in an answer; created is in ms since 1970.
func AppendRule(dst []byte, r *entity.Rule, created int64) []byte {
	return appendDescribed(dst, codeRule, 4, func(dst []byte) []byte {
		dst = appendFilter(dst, r)
		if r.Action != nil {
			dst = appendExpression(dst, codeAction, r.Action.Text)
		} else {
			dst = appendDescribed(dst, codeNoAction, 0, nil)
		}
		return wire.AppendTimestamp(wire.AppendString(dst, r.Name), created)
	})
}

// appendDescribed appends a list of so many values with a descriptor.
func appendDescribed(dst []byte, code uint64, values int, fill func([]byte) []byte) []byte {
	dst = wire.AppendUlong(append(dst, 0), code)
	at := len(dst)
	dst = wire.StartList(dst)
	if fill != nil {
		dst = fill(dst)
	}
	return wire.EndList(dst, at, values)
}

func appendExpression(dst []byte, code uint64, text string) []byte {
	const level = 20 // of the language
	return appendDescribed(dst, code, 2, func(dst []byte) []byte {
		return wire.AppendInt(wire.AppendString(dst, text), level)
	})
}

func appendFilter(dst []byte, r *entity.Rule) []byte {
	switch {
	case r.True:
		return appendDescribed(dst, codeTrue, 0, nil)
	case r.False:
		return appendDescribed(dst, codeFalse, 0, nil)
	case r.SQL != nil:
		return appendExpression(dst, codeSQL, r.SQL.Text)
	}
	c := r.Correlation
	return appendDescribed(dst, codeCorrelation, 9, func(dst []byte) []byte {
		for _, text := range []string{c.CorrelationID, c.MessageID, c.To, c.ReplyTo, c.Label, c.SessionID, c.ReplyToSessionID, c.ContentType} {
			if text == "" {
				dst = wire.AppendNull(dst)
			} else {
				dst = wire.AppendString(dst, text)
			}
		}
		at := len(dst)
		dst = wire.StartMap(dst)
		for _, p := range c.Properties {
			dst = appendValue(wire.AppendString(dst, p.Name), p.Value)
		}
		return wire.EndMap(dst, at, len(c.Properties))
	})
}

// appendValue appends a value that is kept; one that cannot be read is a text.
func appendValue(dst []byte, v entity.Value) []byte {
	text := strings.TrimSpace(v.Text)
	switch v.Kind {
	case entity.Int, entity.Long:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && v.Kind == entity.Int && n == int64(int32(n)) {
			return wire.AppendInt(dst, int32(n))
		} else if err == nil {
			return wire.AppendLong(dst, n)
		}
	case entity.Double, entity.Decimal:
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return wire.AppendDoubleBits(dst, math.Float64bits(f))
		}
	case entity.Boolean:
		if b, err := strconv.ParseBool(text); err == nil {
			return wire.AppendBool(dst, b)
		}
	case entity.DateTime:
		if t, err := parseTime(text); err == nil {
			return wire.AppendTimestamp(dst, t.UnixMilli())
		}
	case entity.GUID:
		if id, err := hex.DecodeString(strings.ReplaceAll(text, "-", "")); err == nil && len(id) == 16 {
			return wire.AppendUUID(dst, [16]byte(id))
		}
	}
	return wire.AppendString(dst, v.Text)
}
