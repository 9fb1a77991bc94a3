package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"unicode"
)

// ban is a word, or several in a row, that no name of the project contains.
type ban struct {
	words   []string   // lower case
	say     string     // instead
	except  [][]string // longer terms in which it may stand
	folders []string   // trees in which it may stand
}

// bans reads the list of words that are not used in names from the glossary:
// the table below its heading "Not in names", a word, what is said instead,
// and the terms, and trees of folders, in which it may stand.
func bans(glossary string) []ban {
	_, list, found := strings.Cut(glossary, "\n## Not in names\n")
	if !found {
		return nil
	}
	var all []ban
	for line := range strings.Lines(list) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[0]) == "not" {
			continue
		}
		var except [][]string
		var folders []string
		for term := range strings.SplitSeq(cells[2], ",") {
			if words := strings.Fields(term); len(words) == 1 && strings.HasSuffix(words[0], "/...") {
				folders = append(folders, words[0])
			} else if len(words) > 0 {
				except = append(except, words)
			}
		}
		for word := range strings.SplitSeq(cells[0], ",") {
			all = append(all, ban{words: strings.Fields(word), say: strings.TrimSpace(cells[1]), except: except, folders: folders})
		}
	}
	return all
}

// breaks reports whether a name, cut into words, contains b outside the terms
// in which it may stand.
func (b ban) breaks(name []string) bool {
	for i := range name {
		if startsWith(name[i:], b.words) && !slices.ContainsFunc(b.except, func(term []string) bool {
			return covers(name, term, i, len(b.words))
		}) {
			return true
		}
	}
	return false
}

// covers reports whether term stands in name so that it holds the n words from
// at on.
func covers(name, term []string, at, n int) bool {
	for i := max(0, at+n-len(term)); i <= at; i++ {
		if startsWith(name[i:], term) {
			return true
		}
	}
	return false
}

func startsWith(words, prefix []string) bool {
	return len(words) >= len(prefix) && slices.Equal(words[:len(prefix)], prefix)
}

// checkWords finds names of files, types, functions, methods, fields, and
// constants and variables of packages, that contain a word of banned.
func checkWords(files []*source, banned []ban) []breach {
	var found []breach
	check := func(dir, at, name string) {
		words := wordsOf(name)
		for _, b := range banned {
			if b.breaks(words) && !matchesAny(b.folders, dir) {
				found = append(found, breach{at, fmt.Sprintf("%s: not %q but %s", name, strings.Join(b.words, " "), b.say)})
			}
		}
	}
	for _, s := range files {
		if s.generated {
			continue
		}
		check(s.dir, s.path, strings.TrimSuffix(path.Base(s.path), ".go"))
		for _, name := range declared(s.ast) {
			check(s.dir, s.at(name.Pos()), name.Name)
		}
	}
	return found
}

// declared returns the names that a file declares outside of function bodies.
func declared(f *ast.File) []*ast.Ident {
	var names []*ast.Ident
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, decl.Name)
		case *ast.GenDecl:
			if decl.Tok == token.IMPORT {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.FuncType: // its parameters are nobody else's
					return false
				case *ast.TypeSpec:
					names = append(names, n.Name)
				case *ast.ValueSpec:
					names = append(names, n.Names...)
				case *ast.Field:
					names = append(names, n.Names...)
				}
				return true
			})
		}
	}
	return names
}

// wordsOf cuts a name in camel case or with underscores into words in lower
// case. A row of capitals is one word: "newHTTPServer" is new, http, server.
func wordsOf(name string) []string {
	var words []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
			word = word[:0]
		}
	}
	letters := []rune(name)
	for i, r := range letters {
		switch {
		case !unicode.IsLetter(r):
			end()
			continue
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])):
			end()
		}
		word = append(word, r)
	}
	end()
	return words
}
