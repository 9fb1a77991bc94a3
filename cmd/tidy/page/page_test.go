package page

import (
	"reflect"
	"testing"
)

func TestCode(t *testing.T) {
	text := "A `span` and [a link](x.md).\n\n    indented\n\n    # more\n\n```sh\n$ one \\\n  two # why\n```\n- item\n    not code `c`\n"
	want := []Block{{"", 1, "span"}, {"", 3, "    indented\n\n    # more\n"}, {"sh", 8, "$ one \\\n  two # why\n"}, {"", 12, "c"}}
	if have := Code(text); !reflect.DeepEqual(have, want) {
		t.Errorf("%+v", have)
	}
	if have := Prose("a `b [c](d)` [e](f)\n```\n[g](h)\n```\ni\n"); have != "a `````````` [e](f)\n\n\n\ni\n" {
		t.Errorf("%q", have)
	}
}

func TestShellWords(t *testing.T) {
	if have := ShellWords(`a 'b c' "d  e"f '' # g`); !reflect.DeepEqual(have, []string{"a", "b c", "d  ef", ""}) {
		t.Errorf("%q", have)
	}
}
