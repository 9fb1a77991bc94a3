package tidy

import (
	"bytes"
	"flag"
	"fmt"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/quorate/quorate/cmd/tidy/page"
)

var (
	rewrite  = flag.Bool("rewrite", false, "write testdata/deps.txt anew, and testdata/hubs.txt if nothing in it gets worse")
	measured = flag.String("tree", root, "the `folder` of which TestMeasure prints the sizes")
)

// root is the path from this package's folder to the repository.
const root = "../.."

var tree = sync.OnceValues(func() ([]*source, error) { return goFiles(os.DirFS(root)) })

func mustTree(t *testing.T) []*source {
	t.Helper()
	files, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	// A rule that checks no files finds nothing.
	if !slices.ContainsFunc(files, func(s *source) bool { return s.path == "fsm/fsm.go" }) {
		t.Fatalf("fsm/fsm.go is not among the %d files found", len(files))
	}
	return files
}

func report(t *testing.T, found []breach) {
	t.Helper()
	for _, b := range found {
		t.Error(b)
	}
}

func TestImports(t *testing.T)         { report(t, checkImports(mustTree(t))) }
func TestPackageComments(t *testing.T) { report(t, checkPackageComments(mustTree(t))) }
func TestDocs(t *testing.T)            { report(t, checkDocs(mustTree(t))) }
func TestPromises(t *testing.T)        { report(t, checkPromises(mustTree(t))) }
func TestSleeps(t *testing.T)          { report(t, checkSleeps(mustTree(t))) }
func TestFolders(t *testing.T)         { report(t, checkFolders(mustTree(t))) }

// TestGoroutines holds go statements against the list of them, in which nothing stands that there is not.
func TestGoroutines(t *testing.T) {
	files := mustTree(t)
	report(t, checkGoroutines(files, unwaited))
	all := len(checkGoroutines(files, nil))
	for name, reason := range unwaited {
		if reason == "" || len(checkGoroutines(files, map[string]string{name: reason})) == all {
			t.Errorf("%s has no go statement, or no reason for it", name)
		}
	}
}

// TestTypes holds types against the rules, as a ratchet: what broke them from the start is listed, and may only
// become less.
func TestTypes(t *testing.T) {
	files, allowed := mustTree(t), map[string]int{}
	for name, l := range large {
		if l.reason == "" {
			t.Errorf("%s may be large without a reason", name)
		}
		allowed[name] = l.methods
	}
	report(t, checkMethods(files, allowed))
	for name, n := range allowed {
		if less := map[string]int{name: n - 1}; len(checkMethods(files, less)) < len(checkMethods(files, nil)) {
			t.Errorf("%s has fewer methods than the list says", name)
		}
	}
	const path = "testdata/hubs.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(text)), "\n")
	if is := hubs(files); *rewrite && len(worse(known, is)) == 0 {
		if err := os.WriteFile(path, []byte(strings.Join(is, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	report(t, checkHubs(files, known))
}

// TestWords holds names against the glossary.
func TestWords(t *testing.T) {
	glossary, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	banned := bans(string(glossary))
	if len(banned) < 30 {
		t.Fatalf("the glossary bans only %d words", len(banned))
	}
	report(t, checkWords(mustTree(t), banned))
}

func TestSizes(t *testing.T) {
	files := mustTree(t)
	allowed := map[string]int{}
	for name, o := range oversize {
		if o.reason == "" {
			t.Errorf("%s may be long without a reason", name)
		}
		allowed[name] = o.lines
	}
	report(t, checkSizes(files, allowed))

	// The ratchet: an exception that is no longer needed must be removed.
	for name := range oversize {
		without := map[string]int{}
		for n, o := range oversize {
			if n != name {
				without[n] = o.lines
			}
		}
		if len(checkSizes(files, without)) == len(checkSizes(files, allowed)) {
			t.Errorf("%s is within the limits and has no place in the list", name)
		}
	}
}

func TestTopLevel(t *testing.T) {
	ignore, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	found, err := checkTopLevel(os.DirFS(root), gitignored(string(ignore)))
	if err != nil {
		t.Fatal(err)
	}
	report(t, found)
}

func TestDeterminism(t *testing.T) {
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo | packages.NeedImports,
		Dir:  abs,
		Fset: token.NewFileSet(),
	}, "./fsm/...")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, p := range loaded {
		dir, ok := projectFolder(p.PkgPath)
		if !ok || !mustBeDeterministic(dir) {
			continue
		}
		for _, e := range p.Errors {
			t.Errorf("%s: %v", dir, e)
		}
		for _, f := range p.Syntax {
			name, err := filepath.Rel(abs, p.Fset.Position(f.Package).Filename)
			if err != nil {
				t.Fatal(err)
			}
			s := &source{path: filepath.ToSlash(name), dir: dir, fset: p.Fset, ast: f}
			report(t, checkDeterminism(s, p.TypesInfo))
			looked++
		}
	}
	if looked == 0 {
		t.Fatal("no file of a deterministic package was looked at")
	}
}

// TestWalks holds the walks through the code against the code.
func TestWalks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "internals.md"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkWalks(string(page), mustTree(t), walkFiles))
}

// TestMeasure prints how large the packages of a tree are, with -v.
func TestMeasure(t *testing.T) {
	files, err := goFiles(os.DirFS(*measured))
	if err != nil {
		t.Fatal(err)
	}
	sizes := measure(files)
	if len(sizes) < 20 {
		t.Fatalf("only %d packages are found", len(sizes))
	}
	t.Log("\n" + table(sizes))
}

// TestDependencies compares the list of modules that are linked into the server with a
// golden file, so that a new dependency is seen in review.
func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/quorate")
	modules := moduleList(mustRun(t, cmd))
	golden := filepath.Join("testdata", "deps.txt")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(strings.Join(modules, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v; write it with -rewrite", err)
	}
	report(t, differences(moduleList(string(want)), modules))
}

// mustRun runs the go command in the project with the settings of a release build, and
// returns its output.
func mustRun(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.Bytes())
	}
	return string(out)
}

// TestLicenses compares the documentation's list of licences with those of the modules
// that are linked into the server.
func TestLicenses(t *testing.T) {
	modules, err := os.ReadFile(filepath.Join("testdata", "deps.txt"))
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}} {{.Dir}}"}, moduleList(string(modules))...)
	var list strings.Builder
	list.WriteString("\n| module | version | licence |\n|---|---|---|\n")
	for line := range strings.Lines(mustRun(t, exec.Command("go", args...))) {
		words := strings.Fields(line)
		if len(words) != 3 {
			t.Fatalf("not in the module cache: %s", line)
		}
		files, err := os.ReadDir(words[2])
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range files {
			if !f.Type().IsRegular() || !isLicense(f.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(words[2], f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, licenseOf(string(text)))
		}
		if len(found) == 0 || slices.Contains(found, "") {
			t.Errorf("%s has the licences %q; which ones may be linked stands in layout.go", words[0], found)
		}
		fmt.Fprintf(&list, "| %s | %s | %s |\n", words[0], words[1], strings.Join(found, ", "))
	}
	page.Hold(t, "../../docs/dependencies.md", "licences", list.String()+"\n")
}

func TestLicenseOf(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004": "Apache-2.0", "Mozilla Public License, version\n2.0": "MPL-2.0",
		"Redistribution and use in source and binary\nforms, with or without": "BSD-2-Clause", "GNU GENERAL PUBLIC LICENSE": "", "": "",
	} {
		if got := licenseOf(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
