package amqptest

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/quorate/quorate/amqp/v091/wire"
)

// prototypes are all methods.
var prototypes = []wire.Method{
	(*wire.ConnectionStart)(nil), (*wire.ConnectionStartOK)(nil), (*wire.ConnectionSecureOK)(nil),
	(*wire.ConnectionTune)(nil), (*wire.ConnectionTuneOK)(nil), (*wire.ConnectionOpen)(nil),
	(*wire.ConnectionOpenOK)(nil), (*wire.ConnectionClose)(nil), (*wire.ConnectionCloseOK)(nil),
	(*wire.ConnectionUpdateSecret)(nil), (*wire.ConnectionUpdateSecretOK)(nil),
	(*wire.ChannelOpen)(nil), (*wire.ChannelOpenOK)(nil), (*wire.ChannelFlow)(nil), (*wire.ChannelFlowOK)(nil),
	(*wire.ChannelClose)(nil), (*wire.ChannelCloseOK)(nil), (*wire.AccessRequest)(nil), (*wire.AccessRequestOK)(nil),
	(*wire.ExchangeDeclare)(nil), (*wire.ExchangeDeclareOK)(nil), (*wire.ExchangeDelete)(nil),
	(*wire.ExchangeDeleteOK)(nil), (*wire.ExchangeBind)(nil), (*wire.ExchangeBindOK)(nil),
	(*wire.ExchangeUnbind)(nil), (*wire.ExchangeUnbindOK)(nil),
	(*wire.QueueDeclare)(nil), (*wire.QueueDeclareOK)(nil), (*wire.QueueBind)(nil), (*wire.QueueBindOK)(nil),
	(*wire.QueueUnbind)(nil), (*wire.QueueUnbindOK)(nil), (*wire.QueuePurge)(nil), (*wire.QueuePurgeOK)(nil),
	(*wire.QueueDelete)(nil), (*wire.QueueDeleteOK)(nil),
	(*wire.BasicQos)(nil), (*wire.BasicQosOK)(nil), (*wire.BasicConsume)(nil), (*wire.BasicConsumeOK)(nil),
	(*wire.BasicCancel)(nil), (*wire.BasicCancelOK)(nil), (*wire.BasicPublish)(nil), (*wire.BasicReturn)(nil),
	(*wire.BasicDeliver)(nil), (*wire.BasicGet)(nil), (*wire.BasicGetOK)(nil), (*wire.BasicGetEmpty)(nil),
	(*wire.BasicAck)(nil), (*wire.BasicReject)(nil), (*wire.BasicNack)(nil), (*wire.BasicRecover)(nil),
	(*wire.BasicRecoverAsync)(nil), (*wire.BasicRecoverOK)(nil),
	(*wire.ConfirmSelect)(nil), (*wire.ConfirmSelectOK)(nil),
	(*wire.TxSelect)(nil), (*wire.TxCommit)(nil), (*wire.TxRollback)(nil),
}

// methodTypes finds the struct of a method by its name in the protocol.
var methodTypes = func() map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, m := range prototypes {
		t := reflect.TypeOf(m).Elem()
		types[methodName(t)] = t
	}
	return types
}()

// methodName turns QueueDeclareOK into queue.declare-ok.
func methodName(t reflect.Type) string { return strings.Replace(dashed(t.Name()), "-", ".", 1) }

// dashed turns NoWait into no-wait.
func dashed(name string) string {
	name = strings.Replace(name, "OK", "Ok", 1)
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// ParseMethod reads "queue.declare queue=q durable x-expires=I:5": a name,
// then arguments by their names. A flag needs no value; an argument the method
// does not have is a field of its table, with the value's type in front. A
// value may be quoted as in Go.
func ParseMethod(words []string) (wire.Method, error) {
	t, ok := methodTypes[words[0]]
	if !ok {
		return nil, fmt.Errorf("no method %s", words[0])
	}
	m := reflect.New(t)
	for _, word := range words[1:] {
		name, text, hasValue := strings.Cut(word, "=")
		if s, err := strconv.Unquote(text); err == nil {
			text = s
		}
		if err := setArgument(m.Elem(), name, text, hasValue); err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
	}
	return m.Interface().(wire.Method), nil
}

func setArgument(m reflect.Value, name, text string, hasValue bool) error {
	for i := range m.NumField() {
		f := m.Field(i)
		switch {
		case f.Type() == reflect.TypeFor[wire.Table]() && !hasField(m, name):
			v, err := parseValue(text)
			if err != nil {
				return err
			}
			f.Set(reflect.Append(f, reflect.ValueOf(wire.Field{Name: name, Value: v})))
			return nil
		case dashed(m.Type().Field(i).Name) != name:
			continue
		case f.Kind() == reflect.Bool:
			f.SetBool(!hasValue || text == "true")
			return nil
		case f.Kind() == reflect.String:
			f.SetString(text)
			return nil
		default:
			n, err := strconv.ParseUint(text, 10, 64)
			f.SetUint(n)
			return err
		}
	}
	return fmt.Errorf("no such argument")
}

func hasField(m reflect.Value, name string) bool {
	for i := range m.NumField() {
		if dashed(m.Type().Field(i).Name) == name {
			return true
		}
	}
	return false
}

// parseValue reads I:5, t:1, S:text or V:.
func parseValue(text string) (wire.Value, error) {
	tag, rest, ok := strings.Cut(text, ":")
	if !ok || len(tag) != 1 {
		return wire.Value{}, fmt.Errorf("want TAG:VALUE")
	}
	v := wire.Value{Tag: tag[0]}
	var err error
	switch v.Tag {
	case wire.TagString, wire.TagBytes:
		v.Str = rest
	case wire.TagVoid:
	case wire.TagArray:
		for s := range strings.SplitSeq(rest, ",") {
			v.Array = append(v.Array, wire.String(s))
		}
	default:
		v.Int, err = strconv.ParseInt(rest, 10, 64)
	}
	return v, err
}

// FormatMethod is the inverse of ParseMethod: arguments that are zero are left
// out.
func FormatMethod(m wire.Method) string {
	v := reflect.ValueOf(m).Elem()
	var b strings.Builder
	b.WriteString(methodName(v.Type()))
	for i := range v.NumField() {
		f, name := v.Field(i), dashed(v.Type().Field(i).Name)
		switch {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			fmt.Fprintf(&b, " %s", name)
		case f.Kind() == reflect.String:
			fmt.Fprintf(&b, " %s=%s", name, quoteIfNeeded(f.String()))
		case f.Kind() == reflect.Slice:
			b.WriteString(FormatTable(f.Interface().(wire.Table)))
		default:
			fmt.Fprintf(&b, " %s=%v", name, f.Interface())
		}
	}
	return b.String()
}

// FormatTable renders fields as " name=TAG:VALUE".
func FormatTable(t wire.Table) string {
	var b strings.Builder
	for _, f := range t {
		fmt.Fprintf(&b, " %s=%s", f.Name, formatValue(f.Value))
	}
	return b.String()
}

func formatValue(v wire.Value) string {
	switch v.Tag {
	case wire.TagString, wire.TagBytes:
		return fmt.Sprintf("%c:%s", v.Tag, quoteIfNeeded(v.Str))
	case wire.TagTable:
		return "{" + strings.TrimSpace(FormatTable(v.Table)) + "}"
	case wire.TagArray:
		parts := make([]string, len(v.Array))
		for i := range v.Array {
			parts[i] = formatValue(v.Array[i])
		}
		return "[" + strings.Join(parts, " ") + "]"
	case wire.TagVoid:
		return "V:"
	}
	return fmt.Sprintf("%c:%d", v.Tag, v.Int)
}

func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r > '~' }) {
		return strconv.Quote(s)
	}
	return s
}

// FormatFrame renders a frame: its channel, and what is in it. Long bodies are
// given by their length.
func FormatFrame(f wire.Frame) string {
	head := fmt.Sprintf("%d ", f.Channel)
	switch f.Type {
	case wire.FrameMethod:
		m, err := wire.DecodeMethod(f.Payload)
		if err != nil {
			return head + err.Error()
		}
		return head + FormatMethod(m)
	case wire.FrameHeader:
		h, err := wire.DecodeHeader(f.Payload, wire.ClassBasic, 0)
		if err != nil {
			return head + err.Error()
		}
		return fmt.Sprintf("%sheader %d%s", head, h.BodySize, FormatProperties(h.Properties))
	case wire.FrameBody:
		if len(f.Payload) > 60 {
			return fmt.Sprintf("%sbody of %d", head, len(f.Payload))
		}
		return fmt.Sprintf("%sbody %q", head, f.Payload)
	}
	return head + "heartbeat"
}

// FormatProperties renders an encoded property list.
func FormatProperties(encoded []byte) string {
	p, err := wire.ParseProperties(encoded)
	if err != nil {
		return " " + err.Error()
	}
	var b strings.Builder
	for _, s := range []struct {
		name  string
		flag  wire.PropertyFlags
		value any
	}{
		{"content-type", wire.FlagContentType, p.ContentType},
		{"delivery-mode", wire.FlagDeliveryMode, p.DeliveryMode},
		{"priority", wire.FlagPriority, p.Priority},
		{"correlation-id", wire.FlagCorrelationID, p.CorrelationID},
		{"reply-to", wire.FlagReplyTo, p.ReplyTo},
		{"expiration", wire.FlagExpiration, p.Expiration},
		{"message-id", wire.FlagMessageID, p.MessageID},
		{"timestamp", wire.FlagTimestamp, p.Timestamp},
		{"type", wire.FlagType, p.Type},
		{"user-id", wire.FlagUserID, p.UserID},
	} {
		if p.Has(s.flag) {
			if text, ok := s.value.([]byte); ok {
				s.value = quoteIfNeeded(string(text))
			}
			fmt.Fprintf(&b, " %s=%v", s.name, s.value)
		}
	}
	headers, err := wire.DecodeFields(p.Headers)
	if err != nil {
		return " " + err.Error()
	}
	if p.Has(wire.FlagHeaders) {
		fmt.Fprintf(&b, " headers:%s", FormatTable(headers))
	}
	return b.String()
}

// ParseProperties encodes "priority=3 expiration=100 x-a=I:5": properties by
// name, everything else a header. words that are no assignment are returned.
func ParseProperties(words []string) (encoded []byte, rest []string, err error) {
	var p wire.Properties
	var headers wire.Table
	for _, word := range words {
		name, text, ok := strings.Cut(word, "=")
		if !ok {
			rest = append(rest, word)
			continue
		}
		if s, err := strconv.Unquote(text); err == nil {
			text = s
		}
		n, _ := strconv.ParseUint(text, 10, 64)
		switch name {
		case "content-type":
			p.Present, p.ContentType = p.Present|wire.FlagContentType, []byte(text)
		case "delivery-mode":
			p.Present, p.DeliveryMode = p.Present|wire.FlagDeliveryMode, byte(n)
		case "priority":
			p.Present, p.Priority = p.Present|wire.FlagPriority, byte(n)
		case "correlation-id":
			p.Present, p.CorrelationID = p.Present|wire.FlagCorrelationID, []byte(text)
		case "reply-to":
			p.Present, p.ReplyTo = p.Present|wire.FlagReplyTo, []byte(text)
		case "expiration":
			p.Present, p.Expiration = p.Present|wire.FlagExpiration, []byte(text)
		case "user-id":
			p.Present, p.UserID = p.Present|wire.FlagUserID, []byte(text)
		default:
			v, err := parseValue(text)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", word, err)
			}
			headers = append(headers, wire.Field{Name: name, Value: v})
		}
	}
	if len(headers) > 0 {
		p.Present |= wire.FlagHeaders
		p.Headers = wire.AppendFields(nil, headers)
	}
	return wire.AppendProperties(nil, &p), rest, nil
}
