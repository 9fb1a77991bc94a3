package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Object is a JSON object whose members have an order: a table in the typed form. Its values are those of
// encoding/json, numbers json.Number, objects Object.
type Object []Member

// Member is a member of an object. Several may have the same name.
type Member struct {
	Name  string
	Value any
}

var (
	errShape = errors.New("not an object")
	errDepth = fmt.Errorf("nested more than %d levels deep", maxDepth)
)

// Append appends an Object, or what encoding/json encodes, as JSON whose texts are as they were written.
func Append(dst []byte, value any) []byte {
	switch x := value.(type) {
	case Object:
		dst = append(dst, '{')
		for i, m := range x {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = Append(append(Append(dst, m.Name), ':'), m.Value)
		}
		return append(dst, '}')
	case []any:
		dst = append(dst, '[')
		for i, e := range x {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = Append(dst, e)
		}
		return append(dst, ']')
	case int64:
		return strconv.AppendInt(dst, x, 10)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(value) // the values of tables always encode
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *Object) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	value, err := ordered(d)
	if err != nil {
		return err
	}
	var ok bool
	if *o, ok = value.(Object); !ok {
		return errShape
	}
	return nil
}

// ordered reads a value token by token, since an object of encoding/json has no order.
func ordered(d *json.Decoder) (any, error) {
	t, err := d.Token()
	switch open, _ := t.(json.Delim); {
	case err != nil:
		return nil, err
	case open == '{':
		o := Object{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := ordered(d)
			if err != nil {
				return nil, err
			}
			o = append(o, Member{name.(string), value}) // the decoder lets nothing else through
		}
		_, err = d.Token() // its end
		return o, err
	case open == '[':
		list := []any{}
		for d.More() {
			value, err := ordered(d)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = d.Token()
		return list, err
	}
	if n, ok := t.(json.Number); ok {
		_, err = n.Float64() // an error if it is beyond any range
	}
	return t, err
}
