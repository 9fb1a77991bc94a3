package tidy

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// walkFiles says how many files each walk of docs/internals.md enters. The numbers may only decrease.
var walkFiles = map[string]int{
	"Publish → confirm": 14, "Delivery at another node": 12, "Tick → dead letter": 10, "Declare → new group": 14, "A node joins": 11,
}

// maxSteps bounds the steps of a walk.
const maxSteps = 11

var (
	step   = regexp.MustCompile(`(?m)^\d+\. `)
	goFile = regexp.MustCompile("`([a-z0-9_/]+\\.go)`")
)

// checkWalks holds the walks of a page against the code: each of their files exists, is entered once, or once more
// with the word "again", and calls another file of its walk or is called by one. entered is walkFiles.
func checkWalks(page string, files []*source, entered map[string]int) (found []breach) {
	walks := 0
	for _, section := range strings.Split(page, "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		steps := step.Split(text, -1)[1:]
		if len(steps) == 0 {
			continue
		}
		walks++
		if len(steps) > maxSteps {
			found = append(found, breach{name, fmt.Sprintf("%d steps, %d allowed", len(steps), maxSteps)})
		}
		var walk []*source
		for _, s := range steps {
			walk = enter(walk, s, files, func(what string) { found = append(found, breach{name, what}) })
		}
		if len(walk) != entered[name] {
			found = append(found, breach{name, fmt.Sprintf("%d files, %d in the list", len(walk), entered[name])})
		}
		for _, s := range walk {
			if !slices.ContainsFunc(walk, func(o *source) bool { return o != s && (calls(s, o) || calls(o, s)) }) {
				found = append(found, breach{name, s.path + " neither calls a file of the walk nor is called by one"})
			}
		}
	}
	if walks != len(entered) {
		found = append(found, breach{"docs/internals.md", fmt.Sprintf("%d walks, not %d", walks, len(entered))})
	}
	return found
}

// enter adds the files that a step of a walk names to those before.
func enter(walk []*source, step string, files []*source, wrong func(string)) []*source {
	for _, m := range goFile.FindAllStringSubmatch(step, -1) {
		before := slices.DeleteFunc(slices.Clone(walk), func(s *source) bool { return s.path != m[1] && !strings.HasSuffix(s.path, "/"+m[1]) })
		i := slices.IndexFunc(files, func(s *source) bool { return s.path == m[1] })
		switch again := strings.Contains(strings.ToLower(step), "again"); {
		case len(before) > 1:
			wrong(m[1] + " may be " + before[0].path + " and " + before[1].path)
		case len(before) == 1 && !again:
			wrong(m[1] + " is entered twice")
		case len(before) == 0 && i < 0:
			wrong(m[1] + " does not exist, or does not stand in the walk before")
		case len(before) == 0:
			walk = append(walk, files[i])
		}
	}
	return walk
}

// calls reports whether one file uses the name of a function or method that the other declares.
func calls(from, to *source) bool {
	declared := map[string]bool{}
	for _, d := range to.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			declared[f.Name.Name] = true
		}
	}
	used := false
	ast.Inspect(from.ast, func(n ast.Node) bool {
		if x, ok := n.(*ast.SelectorExpr); ok {
			used = used || declared[x.Sel.Name]
		}
		return !used
	})
	return used
}
