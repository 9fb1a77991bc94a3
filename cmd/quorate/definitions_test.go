package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// TestReadDefinitions: files are checked before the node does anything.
func TestReadDefinitions(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.json": `{"queues":[]}`, "a.json": `{}`, "notes.txt": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := readDefinitions(dir)
	if err != nil || len(files) != 2 || filepath.Base(files[0].name) != "a.json" || string(files[1].text) != `{"queues":[]}` {
		t.Errorf("%v, %v", files, err)
	}
	if files, err := readDefinitions(""); err != nil || files != nil {
		t.Errorf("%v, %v", files, err)
	}
	for name, want := range map[string]string{"notes.txt": "failed_to_parse_json", "missing.json": "no such file", "b.json": ""} {
		if _, err := readDefinitions(filepath.Join(dir, name)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The hash of definitions depends on their contents, where each ends, and their order.
func TestHashDefinitions(t *testing.T) {
	seen := map[string]int{}
	for i, texts := range [][]string{{"a", "b"}, {"b", "a"}, {"ab"}, {"ab", ""}, {"a"}, {""}} {
		var files []definitionFile
		for _, text := range texts {
			files = append(files, definitionFile{"name", []byte(text)})
		}
		hash := hashDefinitions(files)
		if other, ok := seen[hash]; ok || len(hash) != 64 {
			t.Errorf("%d, as %d: %s", i, other, hash)
		}
		seen[hash] = i
		if files[0].name = "other"; hashDefinitions(files) != hash {
			t.Errorf("%d: names matter", i)
		}
	}
}

// loneCatalog is a catalog without a cluster.
type loneCatalog struct{ catalog catalog.Catalog }

func (c *loneCatalog) View() *catalog.View { return c.catalog.View() }

func (c *loneCatalog) Propose(_ context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return c.catalog.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: commands}), nil
}

// TestLeftOutKeepsUnready: definitions that cannot all be taken are not taken, and the
// node says which and waits until they can be; with partial it goes on without them.
func TestLeftOutKeepsUnready(t *testing.T) {
	const good = `{"vhosts":[{"name":"v"}],"policies":[{"vhost":"v","name":"dlx","pattern":"^(?!amq\\.).*","definition":{"max-length":3}}`
	for _, c := range []struct {
		name, text, lacks string
		partial           bool
		policies          int // at the end; negative: it does not end
	}{
		{"what comes with the next version", good + "]}", `policies "dlx" in vhost "v": pattern should be`, false, 1},
		{"the same, in part", good + "]}", "", true, 1},
		{"what is wrong", good + `,{"vhost":"v","name":"bad","pattern":"(","definition":{"max-length":3}}]}`, `policies "bad" in vhost "v": pattern should be`, false, -1},
		{"what is wrong, in part", good + `,{"vhost":"v","name":"bad","pattern":"(","definition":{"max-length":3}}]}`, "", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				at := &loneCatalog{}
				propose := func(m *logpb.CatalogCommand) {
					if r, err := at.Propose(ctx, m); err != nil || catalog.Refused(r[0]) != nil {
						t.Fatal(r, err)
					}
				}
				propose(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
					Name: "n1", Incarnation: []byte("a"), OldestVersion: fsm.OldestVersion, NewestVersion: fsm.NewestVersion}}})
				lacks := ""
				l := loader{backend: mgmt.Backend{Catalog: at}, files: []definitionFile{{"defs.json", []byte(c.text)}}, partial: c.partial,
					lacks: func(why string) { lacks = why }, logger: slog.New(slog.DiscardHandler)}
				done := make(chan error, 1)
				go func() { done <- l.load(ctx) }()
				synctest.Wait()
				if _, taken := at.View().VHost("v"); taken {
					t.Error("a part has been taken")
				}
				propose(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}})
				before := lacks
				time.Sleep(2 * retryLoading)
				synctest.Wait()
				if c.policies < 0 {
					before = lacks
					cancel()
				}
				if err := <-done; (err != nil) != (c.policies < 0) {
					t.Error(err)
				}
				if n := len(at.View().Policies("v", false)); n != max(c.policies, 0) {
					t.Errorf("%d policies", n)
				}
				if !strings.Contains(before, c.lacks) || (before == "") != (c.lacks == "") || c.policies >= 0 && lacks != "" {
					t.Errorf("the node lacks %q, then %q", before, lacks)
				}
			})
		})
	}
}
