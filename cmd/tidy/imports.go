package tidy

import (
	"go/ast"
	"strconv"
	"strings"
)

// importRule says what the packages of a tree may import. The first rule that matches
// a package applies.
type importRule struct {
	tree string // pattern of folders
	// project holds patterns of the project's folders that may be imported;
	// a package may always import its own tree's internal folder.
	project []string
	// others, if not nil, holds patterns of the modules and packages outside of the
	// project and the standard library that may be imported.
	others []string
	// std, if not empty, holds patterns of the standard library that may not
	// be imported.
	notStd []string
}

// impure lists packages that a deterministic package must not use.
var impure = []string{
	"time", "os/...", "net/...", "sync/...", "context", "log/...", "math/rand/...",
	"crypto/rand", "runtime/...", "unsafe", "syscall", "plugin", "testing/...",
}

// protobuf lists the packages that generated code imports.
var protobuf = []string{"google.golang.org/protobuf/...", "github.com/planetscale/vtprotobuf/..."}

var none = []string{}

// importRules are the layers of the project, from the innermost outwards.
var importRules = []importRule{
	{tree: "proto/...", project: []string{"proto/..."}},

	{tree: "fsm", project: []string{"proto/logpb"}, others: protobuf, notStd: impure},
	{tree: "fsm/route", project: []string{"proto/logpb"}, others: none, notStd: impure},
	{tree: "fsm/pattern", project: none, others: none, notStd: impure},
	{tree: "fsm/selector", project: none, others: none, notStd: impure},
	{tree: "fsm/fsmtest/...", project: []string{"fsm/...", "proto/..."}},
	{tree: "fsm/...", project: []string{"fsm", "fsm/route", "fsm/pattern", "fsm/invariants", "proto/logpb"}, others: protobuf, notStd: impure},

	{tree: "amqp/v091/wire/...", project: []string{"amqp/v091/wire/..."}, others: none},
	{tree: "amqp/v10/wire/...", project: []string{"amqp/v10/wire/..."}, others: none, notStd: []string{"net/...", "time", "sync/...", "log/..."}},
	// A protocol knows what protocols share, and never another one; what they share knows none.
	// Where messages go from one to another, both codecs are known.
	{tree: "amqp/message", project: []string{"amqp/v091/wire", "amqp/v10/wire", "fsm", "fsm/selector", "proto/logpb"}},
	{tree: "amqp/v091/...", project: []string{"amqp", "amqp/message", "amqp/v091/...", "fsm", "fsm/invariants", "proto/logpb"}},
	{tree: "amqp/v10/...", project: []string{"amqp", "amqp/message", "amqp/v10/...", "fsm", "fsm/invariants", "fsm/selector", "proto/logpb"}},
	// What changes a stored message, and the rules that select and change it, know how it is encoded.
	{tree: "amqp/servicebus/edit", project: []string{"amqp/v10/wire"}, others: none},
	{tree: "amqp/servicebus/rules", project: []string{"amqp/servicebus/edit", "amqp/v10/wire", "fsm"}, others: none, notStd: []string{"net/...", "os/...", "log/..."}},
	// What a front of another broker's programs knows of protocols and clusters goes through amqp and its own
	// interfaces.
	{tree: "amqp/servicebus/entity", project: []string{"fsm", "proto/logpb"}, others: none},
	{tree: "amqp/servicebus/sas", project: none, others: none},
	{tree: "amqp/servicebus/...", project: []string{"amqp", "amqp/message", "amqp/servicebus/...", "amqp/v10/...", "fsm", "fsm/invariants", "fsm/selector", "proto/logpb"}},
	// What the programs of users import: it knows the protocol and its client library alone.
	{tree: "amqp/client", project: none, others: []string{"github.com/rabbitmq/amqp091-go"}},
	{tree: "amqp/amqptest", project: []string{"amqp", "amqp/v091/wire", "fsm", "proto/logpb"}},
	{tree: "amqp", project: []string{"fsm", "fsm/invariants"}},

	{tree: "cluster/worker/...", project: none},
	{tree: "cluster/watchdog/...", project: []string{"cluster/raftlog", "cluster/worker"}},
	// What a queue's group and the catalog share knows neither of them, nor what is in an entry.
	{tree: "cluster/replica", project: []string{"cluster/peer", "cluster/raftlog", "fsm"}},
	// Neither of which knows the other.
	{tree: "cluster/catalog", project: []string{"cluster/peer", "cluster/raftlog", "cluster/replica", "cluster/worker", "fsm", "fsm/catalog", "proto/..."}},
	{tree: "cluster/election", project: []string{"cluster/peer", "cluster/replica", "cluster/worker", "fsm"}},
	{tree: "cluster/group", project: []string{
		"cluster/clock", "cluster/durations", "cluster/election", "cluster/peer", "cluster/raftlog", "cluster/replica", "cluster/worker", "fsm", "fsm/catalog", "fsm/invariants", "fsm/queue", "proto/...",
	}},
	// One queue's group knows nothing of the others.
	{tree: "cluster/host", project: []string{
		"cluster/election", "cluster/group", "cluster/peer", "cluster/raftlog", "cluster/replica", "cluster/worker", "fsm", "fsm/queue",
	}},
	// They know nothing of sessions.
	{tree: "cluster/membership/...", project: []string{"cluster/audit", "cluster/catalog", "cluster/certs", "cluster/explain", "cluster/group", "cluster/mgmt/api", "cluster/peer", "cluster/raftlog", "cluster/replica", "cluster/worker", "fsm/...", "proto/..."}},
	{tree: "cluster/placement/...", project: []string{"cluster/catalog", "cluster/group", "cluster/host", "cluster/mgmt/api", "cluster/peer", "cluster/replica", "cluster/self", "cluster/stats", "cluster/stream", "cluster/worker", "fsm/...", "proto/..."}},
	// What serves clients, from this node outwards: each knows those before it.
	{tree: "cluster/self", project: []string{"cluster/catalog", "cluster/group", "cluster/host", "cluster/peer", "cluster/replica", "cluster/stats", "cluster/worker", "fsm/...", "proto/..."}},
	{tree: "cluster/failure", project: []string{"cluster/group", "cluster/peer", "cluster/self", "cluster/stats", "cluster/worker", "fsm/...", "proto/..."}},
	{tree: "cluster/queues", project: []string{
		"cluster/audit", "cluster/deadletter", "cluster/expiry", "cluster/explain", "cluster/failure", "cluster/group", "cluster/mgmt/api", "cluster/peer",
		"cluster/placement", "cluster/raftlog", "cluster/replica", "cluster/self", "cluster/stream", "cluster/tables", "cluster/worker", "fsm/...", "proto/...",
	}},
	{tree: "cluster/session", project: []string{
		"cluster/audit", "cluster/deadletter", "cluster/expiry", "cluster/group", "cluster/login", "cluster/peer", "cluster/queues", "cluster/self", "cluster/stats",
		"cluster/stream", "cluster/traffic", "cluster/worker", "fsm/...", "proto/...",
	}},
	{tree: "cluster/...", project: []string{"cluster/...", "fsm/...", "proto/..."}},

	{tree: "cmd/quorate", project: []string{"..."}},
	{tree: "cmd/quorate/...", project: []string{"..."}},
	{tree: "cmd/quoratectl/...", project: []string{"cmd/quoratectl/...", "fsm/pattern", "cluster/mgmt/api", "cluster/certs", "cluster/backup/archive"}},
	{tree: "cmd/testrun"},
	{tree: "cmd/tidy/...", project: []string{"cmd/tidy/page"}},

	{tree: "jepsen/typed", project: []string{"jepsen/...", "cmd/tidy/page"}},
	// A program that says its version as the others do.
	{tree: "jepsen/bench", project: []string{"jepsen/...", "cluster/mgmt/api", "cmd/tidy/page"}, others: []string{"github.com/rabbitmq/amqp091-go", "github.com/nats-io/nats.go/...", "golang.org/x/exp/trace", "golang.org/x/sync/..."}},
	// What it takes through its steps is among others a package of the project for users.
	{tree: "jepsen/clients", project: []string{"jepsen/...", "amqp/client"}},
	{tree: "jepsen/...", project: []string{"jepsen/..."}},
	// The builder of images is a module of its own.
	{tree: "deploy/...", project: none},
	{tree: "docs/site", project: none},
	{tree: "docs/examples/amqp10/...", project: []string{"docs/examples/amqp10/management"}, others: []string{"github.com/Azure/go-amqp"}},
	{tree: "docs/examples/...", project: []string{"amqp/client"}, others: []string{"github.com/rabbitmq/amqp091-go"}},
}

// raftUsers are the only folders that may import the raft library.
var raftUsers = []string{"cluster/catalog", "cluster/election", "cluster/group/...", "cluster/host", "cluster/replica", "cluster/raftlog/...", "cluster/peer/..."}

// outsiders use the binary and the protocol, and import nothing of the server.
var outsiders = []string{"jepsen/...", "docs/examples/..."}

// checkImports checks every file against importRules. Test files are exempt, except in
// a tree that must stay outside of the server (see outsiders).
func checkImports(files []*source) []breach {
	var found []breach
	unruled := map[string]bool{}
	for _, s := range files {
		rule := ruleFor(s.dir)
		if rule == nil {
			if !unruled[s.dir] {
				found = append(found, breach{s.dir, "no import rule covers this folder"})
			}
			unruled[s.dir] = true
			continue
		}
		if s.test && !matchesAny(outsiders, s.dir) {
			continue
		}
		for _, spec := range s.ast.Imports {
			if why := rule.refuses(s.dir, importPath(spec)); why != "" {
				found = append(found, breach{s.at(spec.Pos()), why})
			}
		}
	}
	return found
}

func ruleFor(dir string) *importRule {
	for i := range importRules {
		if matches(importRules[i].tree, dir) {
			return &importRules[i]
		}
	}
	return nil
}

// refuses returns why a package in dir may not import name; empty if it may.
func (r *importRule) refuses(dir, name string) string {
	if folder, ok := projectFolder(name); ok {
		if matchesAny(r.project, folder) || ownInternal(dir, folder) {
			return ""
		}
		return dir + " may not import " + folder
	}
	if isStd(name) {
		if matchesAny(r.notStd, name) {
			return dir + " is deterministic and may not import " + name
		}
		return ""
	}
	if within(name, "github.com/hashicorp/raft") || strings.HasPrefix(name, "github.com/hashicorp/raft-") {
		if !matchesAny(raftUsers, dir) {
			return dir + " may not import " + name + ": raft is known to cluster/replica, cluster/group, cluster/host, cluster/election, cluster/catalog, cluster/raftlog and cluster/peer only"
		}
	}
	if r.others != nil && !matchesAny(r.others, name) {
		return dir + " may not import " + name
	}
	return ""
}

// projectFolder returns the folder of one of the project's packages.
func projectFolder(name string) (string, bool) {
	if name == module {
		return ".", true
	}
	return strings.CutPrefix(name, module+"/")
}

// ownInternal reports whether folder is internal to the tree that dir is in.
func ownInternal(dir, folder string) bool {
	tree, _, ok := strings.Cut(folder, "/internal")
	return ok && within(dir, tree)
}

// isStd reports whether name is a package of the standard library.
func isStd(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !strings.Contains(first, ".")
}

func importPath(spec *ast.ImportSpec) string {
	name, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // never: the parser has accepted it
	}
	return name
}
