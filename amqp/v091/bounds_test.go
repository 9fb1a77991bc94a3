package v091

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cmd/tidy/page"
)

// bounds are the rows of docs/fairness.md about memory that is held for clients. constants are those of server.go of package amqp, and of v091.go, that a row
// is about, setting is what changes it.
var bounds = []struct {
	constants          string
	what, per          string
	value              any
	setting, otherwise string
}{
	{"", "everything below together", "connection", amqp.Config{}.WithDefaults().HeldByConnection, "held_memory.connection", "506: the channel that holds most is closed and rolled back"},
	{"", "the same", "user, at a node", "half of the node's", "held_memory.user", "the same, at the connection that holds most; answers over HTTP are 503"},
	{"", "the same", "node", "a quarter of the memory limit", "held_memory.node", "the same, at the user who holds most"},
	{"eagerBody", "memory for a body because of its header alone", "channel", eagerBody, "", "it grows as the body arrives"},
	{"MaxUnconfirmed", "publishes without a final result", "connection", amqp.MaxUnconfirmed, "", "the socket is not read"},
	{"MaxUnconfirmedBytes", "the same, in bytes, and the message that reaches it", "connection", amqp.MaxUnconfirmedBytes, "", "the socket is not read"},
	{"CrowdedBytes", "the same, while the user or the node is at its bound and the connection holds its share of that", "connection", amqp.CrowdedBytes, "", "the socket is not read"},
	{"maxQueued", "methods behind one that waits for the cluster", "channel", maxQueued, "", "the socket is not read"},
	{"maxQueuedBytes", "the same, in bytes as decoded", "channel", maxQueuedBytes, "", "the socket is not read"},
	{"alarmedBytes", "the same, during an alarm", "channel", alarmedBytes, "", "the socket is not read"},
	{"", "publishes of a transaction", "channel", "65,536", "", "406"},
	{"lastBody", "what may be missing of the one message that is completed during an alarm", "connection", lastBody, "", "the socket is not read"},
	{"MaxRequested", "replies, returns and answers to `basic.get` that the client has not read", "connection", amqp.MaxRequested, "", "the socket is not read"},
	{"MaxBacklog", "the same and deliveries, if the client has read nothing for 5 s", "connection", amqp.MaxBacklog, "", "the connection is closed"},
	{"", "a message", "–", amqp.Config{}.WithDefaults().MaxMessageSize, "max_message_size", "406 at its header"},
	{"addedProperties", "properties of a publish: a frame without the room for what is added to them", "message", maxProperties(amqp.Config{}.WithDefaults().FrameMax), "frame_max", "406 at its header"},
	{"", "properties of a delivery", "message", "the client's frame", "", "311: the message goes back as failed, and counts for its delivery limit"},
}

// TestBoundsDocument: docs/fairness.md has every bound of memory that is held for clients, each size in those files among
// them, and docs/security.md every setting of one.
func TestBoundsDocument(t *testing.T) {
	var b strings.Builder
	listed := map[string]bool{}
	security, err := os.ReadFile("../../docs/security.md")
	must(t, err)
	b.WriteString("| what is held | per | bound | setting | beyond it |\n|---|---|---|---|---|\n")
	for _, r := range bounds {
		listed[r.constants] = true
		setting := r.setting
		if setting != "" {
			setting = "`" + setting + "`"
			if !strings.Contains(string(security), setting) {
				t.Errorf("docs/security.md does not list %s", setting)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.what, r.per, shownBound(r.value), setting, r.otherwise)
	}
	page.Hold(t, "../../docs/fairness.md", "bounds", b.String())
	for _, name := range append(sizesIn(t, "../server.go"), sizesIn(t, "v091.go")...) {
		if !listed[name] {
			t.Errorf("%s is in no row", name)
		}
	}
}

func shownBound(v any) string {
	n, ok := v.(int)
	if w, is := v.(int64); is {
		n, ok = int(w), true
	}
	switch {
	case !ok:
		return fmt.Sprint(v)
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0 && n > 4096:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprint(n)
}

// notHeld are constants of those files that bound no memory of clients who have logged in.
var notHeld = map[string]bool{"maxDelayed": true, "closeWorkers": true, "DefaultFrameMax": true, "minFrameMax": true, "maxFrameMax": true, "maxBodySize": true, "keepItems": true, "keepAliveCount": true, "logLinesPerSecond": true}

// sizesIn lists the constants of a file that are no times.
func sizesIn(t *testing.T, file string) (names []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	must(t, err)
	for _, decl := range tree.Decls {
		of, ok := decl.(*ast.GenDecl)
		if !ok || of.Tok != token.CONST {
			continue
		}
		for _, s := range of.Specs {
			s := s.(*ast.ValueSpec)
			if len(s.Values) == 0 {
				continue // one of an enumeration
			}
			time := false // or the first of an enumeration
			ast.Inspect(s.Values[0], func(n ast.Node) bool {
				x, ok := n.(*ast.Ident)
				time = time || ok && (x.Name == "time" || x.Name == "iota")
				return true
			})
			if name := s.Names[0].Name; !time && !notHeld[name] {
				names = append(names, name)
			}
		}
	}
	return names
}
