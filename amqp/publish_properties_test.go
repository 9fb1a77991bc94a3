package amqp

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/wire"
)

// Keys that a payload has no room for are refused; those beside them are kept,
// as a stored message must show the same keys as ever.
func TestCopies(t *testing.T) {
	key := func(n int) string { return strings.Repeat("k", n) }
	for name, c := range map[string]struct {
		keys []wire.Value
		want []string
		err  string
	}{
		"longest":     {[]wire.Value{wire.String(key(255))}, []string{key(255)}, ""},
		"other types": {[]wire.Value{wire.Int64(1), wire.String("a")}, []string{"a"}, ""},
		"too long":    {[]wire.Value{wire.String("a"), wire.String(key(256)), wire.String("b")}, []string{"a", "b"}, "invalid message: a routing key of 256 bytes in BCC, at most 255 are allowed"},
		"most":        {slices.Repeat([]wire.Value{wire.String(key(254))}, 257), slices.Repeat([]string{key(254)}, 257), ""},
		"too many":    {slices.Repeat([]wire.Value{wire.String(key(255))}, 256), slices.Repeat([]string{key(255)}, 255), "invalid message: more than 65535 bytes of routing keys in BCC"},
		"empty ones":  {slices.Repeat([]wire.Value{wire.String("")}, 65_536), slices.Repeat([]string{""}, 65_535), "invalid message: more than 65535 bytes of routing keys in BCC"},
	} {
		raw, err := wire.EditProperties(nil, []byte{0, 0}, &wire.Edit{SetHeaders: wire.Table{{Name: headerBCC, Value: wire.Array(c.keys...)}}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := wire.ParseProperties(raw)
		if err != nil {
			t.Fatal(err)
		}
		got, err := copies(nil, &p, headerBCC)
		if !slices.Equal(got, c.want) || (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %d keys, %v", name, len(got), err)
		}
	}
}
