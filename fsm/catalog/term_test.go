package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// What a policy is refused with says what was wrong with it, and is not long
// however long or deep that is.
func TestTermIsBounded(t *testing.T) {
	word := func(s string) *logpb.Value { return &logpb.Value{Tag: 'S', Str: []byte(s)} }
	deep := func(depth int, wrap func(*logpb.Value) *logpb.Value) *logpb.Value {
		v := word("x")
		for range depth {
			v = wrap(v)
		}
		return v
	}
	list := func(v ...*logpb.Value) *logpb.Value { return &logpb.Value{Tag: 'A', Array: v} }
	object := func(v *logpb.Value) *logpb.Value {
		return &logpb.Value{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{{Name: "a", Value: v}}}}
	}
	for name, c := range map[string]struct {
		value *logpb.Value
		want  string
	}{
		"short":        {list(word("a"), object(word("b")), list()), `[<<"a">>,#{<<"a">> => <<"b">>},[]]`},
		"a long text":  {word(strings.Repeat("x", 1<<20)), `<<"xxx`},
		"a long list":  {&logpb.Value{Tag: 'A', Array: make([]*logpb.Value, 1<<20)}, "[unknown,unknown"},
		"deep lists":   {deep(10_000, func(v *logpb.Value) *logpb.Value { return list(v) }), "[[[["},
		"deep objects": {deep(10_000, object), `#{<<"a">> => #{`},
	} {
		if got := Term(c.value); !strings.HasPrefix(got, c.want) || len(got) > 4*maxTerm {
			t.Errorf("%s: %d bytes, %.100s", name, len(got), got)
		}
	}
	all := &fsm.Table{}
	for i := range 10_000 {
		all.Fields = append(all.Fields, &logpb.Field{Name: fmt.Sprintf("k%05d", i), Value: word("v")})
	}
	if err := checkDefinition(all, false, fsm.NewestVersion); err == nil || len(err.Error()) > 4*maxTerm {
		t.Errorf("the refusal of many keys has %d bytes", len(err.Error()))
	}
}
