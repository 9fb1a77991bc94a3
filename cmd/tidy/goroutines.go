package tidy

import "go/ast"

// waited are the trees whose goroutines have an owner who waits for them: they are started by a method Go or
// Spawn of worker.Tasks, or by sync.WaitGroup.Go.
var waited = []string{"cluster/...", "cmd/quorate"}

// unwaited lists the functions there that start one by a go statement, with the reason.
var unwaited = map[string]string{
	"cluster/alarm/alarm.go#Watch.measureDisk":      "a disk that never answers cannot be waited for",
	"cluster/replica/entries.go#entryCheck.Entry":   "it ends the process",
	"cluster/group/apply.go#outgoing.unlockAndRun":  "one for each burst of effects, counted by hand: WaitGroup.Go would allocate twice",
	"cluster/group/propose.go#proposer.start":       "one for each burst of commands, likewise",
	"cluster/group/propose.go#proposer.propose":     "likewise",
	"cluster/stream/stream.go#Route.start":          "likewise; nobody waits for it, since without the mesh it ends by itself",
	"cluster/raftlog/segments.go#segments.makeNext": "closing waits for it by the condition that all wait by who need the segment",
	"cmd/quorate/clients.go#clientListeners.serve":  "it ends with the server, which waits for its clients",
	"cmd/quorate/server.go#serverCommand":           "it ends with the process",
	"cmd/quorate/server.go#serveAt":                 "it ends with the server that it serves",
	"cmd/quorate/server.go#shutdown":                "it ends with the context",
	"cmd/quorate/server.go#joinAndWait":             "its answer is waited for",
	"cmd/quorate/server.go#supervisor.stop":         "it waits for others, for longer than its caller does",
	"cmd/quorate/dev.go#devWatch":                   "they wait for processes, which may outlive this one",
	"cmd/quorate/dev.go#devNode.start":              "likewise",
}

// checkGoroutines finds go statements of waited but those in the functions of allowed, which is unwaited.
func checkGoroutines(files []*source, allowed map[string]string) []breach {
	var found []breach
	for _, s := range files {
		if s.test || !matchesAny(waited, s.dir) {
			continue
		}
		for _, decl := range s.ast.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && allowed[s.path+"#"+functionName(f)] != "" {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					found = append(found, breach{s.at(g.Pos()), "go statement: nobody waits for it; see worker.Tasks and sync.WaitGroup.Go"})
				}
				return true
			})
		}
	}
	return found
}
