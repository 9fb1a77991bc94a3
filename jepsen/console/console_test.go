package console

import (
	"context"
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var screenshots = flag.String("console.screenshots", "", "write pictures of pages into this folder")
var many = flag.Int("console.queues", 0, "measure, and bound, what the list of so many queues takes until it is painted; 0: a short list, without bounds")

// limit bounds the whole test, the start of its nodes and of the browser among it.
const limit = 8 * time.Minute

// world is what all tests use: three nodes, and a browser.
type world struct {
	*cluster.Cluster
	browser context.Context
	url     string // of the first node
}

// TestConsole goes through the console, one thing after the other.
func TestConsole(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	browsing := mustBrowse(t)
	t.Log(version(browsing))
	c := mustStart(t, ctx)
	w := &world{c, browsing, "http://" + c.Nodes[0].HTTP + "/"}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"login", testLogin}, {"live", testLive}, {"publish", testPublish}, {"scheduled", testScheduled}, {"letters", testLetters}, {"ended", testEnded}, {"filters", testFilters}, {"kept", testKept},
		{"connections", testConnections}, {"sessions", testSessions}, {"timeouts", testTimeouts}, {"drift", testDrift}, {"policy", testPolicy}, {"exchange", testExchange}, {"replicas", testReplicas}, {"actions", testActions}, {"users", testUsers}, {"definitions", testDefinitions},
		{"graph", testGraph}, {"rights", testRights}, {"disconnect", testDisconnect}, {"features", testFeatures}, {"close", testClose}, {"why", testWhy}, {"priorities", testPriorities}, {"get", testGet}, {"glance", testGlance},
		{"unknown", testUnknown}, {"absent", testAbsent}, {"words", testWords}, {"time", testTime}, {"widths", testWidths},
		{"drain", testDrain},
		{"screenshots", takeScreenshots}, {"hostile", testHostile}, {"keyboard", testKeyboard}, {"small and dark", testSmallAndDark},
		{"many queues", testManyQueues},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, w) })
	}
}

func mustStart(t *testing.T, ctx context.Context) *cluster.Cluster {
	t.Helper()
	dir := t.TempDir()
	binary, err := cluster.Build(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return c
}

// mustCall makes a request to the first node.
func (w *world) mustCall(t *testing.T, method, path string, in, out any) {
	t.Helper()
	if err := w.Nodes[0].Call(t.Context(), method, path, in, out); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

func (w *world) mustQueue(t *testing.T, name string, arguments map[string]any) {
	t.Helper()
	w.mustCall(t, http.MethodPut, queuePath(name), map[string]any{"arguments": arguments}, nil)
}
