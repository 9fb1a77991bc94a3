package catalog

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

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
		_, refused, _, err := k.admit("n1", c.entry)
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

// From version 3 on a command that is not admitted is refused alone, and the entry says so to all replicas. Where none is
// admitted nothing is proposed, nor where the reasons would make the entry too long.
func TestCatalogAdmitsApart(t *testing.T) {
	m := &catalog.Catalog{}
	m.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("i"), OldestVersion: 1, NewestVersion: 3}}},
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 3}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}},
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.ClusterQueueLimit, Value: 0}}},
	}})
	queue := func(name string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: name, Members: []uint32{1}}}}
	}
	exchange := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: "direct"}}}
	k := New(Config{Node: "n1", Logger: slog.New(slog.DiscardHandler)})
	k.applier.view.Store(m.View())
	admit := func(commands ...*logpb.CatalogCommand) (entry []byte, results []*logpb.CatalogResult) {
		t.Helper()
		raw, err := logpb.Marshal(&logpb.CatalogEntry{Version: 3, Commands: commands})
		if err != nil {
			t.Fatal(err)
		}
		entry, results, _, err = k.admit("n1", raw)
		if err != nil {
			t.Fatal(err)
		}
		return entry, results
	}
	entry, results := admit(queue("a"), exchange, queue("b"))
	if results != nil {
		t.Fatalf("answered with %v", results)
	}
	if err := admitCatalogEntry(&raft.Log{Data: entry}, 3); err != nil {
		t.Errorf("a follower refuses the entry: %v", err)
	}
	e, err := decodeCatalog(entry, 3)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, r := range m.View().Fork().Apply(2, e) {
		texts = append(texts, r.Text)
	}
	const full = "cannot declare queue '%s': queue limit in cluster (0) is reached"
	if want := []string{fmt.Sprintf(full, "a"), "", fmt.Sprintf(full, "b")}; !slices.Equal(texts, want) {
		t.Errorf("answers %q, want %q", texts, want)
	}
	if entry, results := admit(queue("a"), queue("b")); entry != nil || len(results) != 2 || results[1].Text != fmt.Sprintf(full, "b") {
		t.Errorf("none is admitted: %d bytes are proposed, answers %v", len(entry), results)
	}
	many := slices.Repeat([]*logpb.CatalogCommand{exchange, queue(strings.Repeat("q", 200))}, maxCatalogCommands/2-10)
	if entry, results := admit(many...); entry != nil || len(results) != len(many) || results[0].Refusal == 0 {
		t.Errorf("reasons that are too long: %d bytes are proposed, %d answers", len(entry), len(results))
	}
}
