package route

import "testing"

type headers map[string]Value

func (h headers) Header(name string) (Value, bool) { v, ok := h[name]; return v, ok }

func number(n int64) Value { return Value{Class: Int, Num: n} }
func text(s string) Value  { return Value{Class: String, Text: []byte(s)} }

func TestHeaders(t *testing.T) {
	format := []Field{{"x-match", text("?")}, {"format", text("pdf")}, {"type", number(1)}}
	withX := []Field{{"x-match", text("?")}, {"x-kind", text("pdf")}}
	presence := []Field{{"format", Value{}}}
	only := []Field{{"x-match", text("?")}}
	for _, c := range []struct {
		name, mode string
		fields     []Field
		message    headers
		want       bool
	}{
		{"all, both", "all", format, headers{"format": text("pdf"), "type": number(1), "more": text("x")}, true},
		{"all, one", "all", format, headers{"format": text("pdf")}, false},
		{"all, other value", "all", format, headers{"format": text("pdf"), "type": number(2)}, false},
		{"all, other class", "all", format, headers{"format": text("pdf"), "type": text("1")}, false},
		{"any, one", "any", format, headers{"type": number(1)}, true},
		{"any, none", "any", format, headers{"type": number(2), "format": text("PDF")}, false},
		{"any, no headers", "any", format, nil, false},
		{"all, x- is left out", "all", withX, nil, true},
		{"any, x- is left out", "any", withX, headers{"x-kind": text("pdf")}, false},
		{"all-with-x", "all-with-x", withX, headers{"x-kind": text("pdf")}, true},
		{"all-with-x, missing", "all-with-x", withX, nil, false},
		{"any-with-x", "any-with-x", withX, headers{"x-kind": text("pdf")}, true},
		{"presence", "all", presence, headers{"format": number(9)}, true},
		{"presence of void", "all", presence, headers{"format": Value{}}, true},
		{"no presence", "all", presence, headers{"other": number(9)}, false},
		{"value is not void", "all", format[1:2], headers{"format": Value{}}, false},
		{"all of nothing", "all", only, nil, true},
		{"any of nothing", "any", only, headers{"x-match": text("?")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, ok := NewHeaders(c.mode, c.fields)
			if !ok {
				t.Fatal("mode refused")
			}
			if got := h.Match(c.message); got != c.want {
				t.Errorf("match is %v", got)
			}
		})
	}
	for _, mode := range []string{"", "some", "all-with-y", "-with-x", "ANY"} {
		if _, ok := NewHeaders(mode, nil); ok {
			t.Errorf("mode %q accepted", mode)
		}
	}
}
