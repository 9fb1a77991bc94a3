package catalog

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// What another node asks the catalog's leader to commit is looked at first: every
// replica would have to apply it, for ever.
func TestCatalogAdmits(t *testing.T) {
	declare := func(key string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
			Vhost: "/", Name: "q", Arguments: &fsm.Table{Fields: []*logpb.Field{
				{Name: "x-dead-letter-routing-key", Value: &logpb.Value{Tag: 'S', Str: []byte(key)}},
			}},
		}}}
	}
	entry := func(version uint32, commands ...*logpb.CatalogCommand) []byte {
		b, err := logpb.Marshal(&logpb.CatalogEntry{Version: version, Commands: commands})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	short, long := declare(strings.Repeat("k", 255)), declare(strings.Repeat("k", 256))
	k := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for name, c := range map[string]struct {
		entry   []byte
		refused int // answers
		err     string
	}{
		"short":           {entry: entry(1, short)},
		"long":            {entry: entry(1, long), refused: 1},
		"long behind":     {entry: entry(1, short, long), refused: 2},
		"empty command":   {entry: entry(1, &logpb.CatalogCommand{}), refused: 1},
		"no entry":        {entry: []byte("garbage"), err: "cannot be decoded"},
		"cut short":       {entry: entry(1, short)[:100], err: "cannot be decoded"},
		"no version":      {entry: entry(0, short), err: "has version 0"},
		"unknown version": {entry: entry(2, short), err: "has version 2"},
	} {
		refused, _, err := k.admit("n1", c.entry)
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) || len(refused) != c.refused {
			t.Errorf("%s: %d answers, %v", name, len(refused), err)
		}
		for _, r := range refused {
			if catalog.Refused(r) == nil {
				t.Errorf("%s: %v is no refusal", name, r)
			}
		}
	}
}
